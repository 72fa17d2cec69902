"""SIGKILL at every labelled step of a client, 20 seeds each: never is less counted than was released."""

from __future__ import annotations

import signal

import pytest

from fedprivacy._support.failpoints import CLIENT_POINTS
from fedprivacy.flower.client.node import GUARD
from tests.faults import life
from tests.faults.killing import SEEDS, lived, on_guard, released, which_time


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", CLIENT_POINTS)
def test_a_client_killed_anywhere_counts_all_that_left_it_and_answers_again(processes, tmp_path, point, seed):
    times = which_time(point, seed, life.GRANTS)
    assert lived(processes, life.answer, tmp_path, seed, point, times) == -signal.SIGKILL
    if (tmp_path / "hospital-0" / GUARD).exists():
        assert on_guard(tmp_path, seed, "hospital-0") >= released(tmp_path)["hospital-0"]
    assert lived(processes, life.answer, tmp_path, seed) == 0
    left, steps = released(tmp_path)["hospital-0"], life.plan(tmp_path, seed).config.local_steps
    assert left >= life.GRANTS * steps
    assert left <= on_guard(tmp_path, seed, "hospital-0") <= left + steps
