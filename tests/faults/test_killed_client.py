"""SIGKILL at every labelled step of a client, each time that it gets there: never is less counted than was released."""

from __future__ import annotations

import signal

import pytest

from fedprivacy._support.failpoints import CLIENT_POINTS
from fedprivacy.flower.client.node import GUARD
from tests.faults import life
from tests.faults.killing import deaths, lived, on_guard, released


@pytest.mark.parametrize(("point", "times", "steps"), deaths(CLIENT_POINTS, life.GRANTS))
def test_a_client_killed_anywhere_counts_all_that_left_it_and_answers_again(processes, tmp_path, point, times, steps):
    assert lived(processes, life.answer, tmp_path, steps, point, times) == -signal.SIGKILL
    if (tmp_path / "hospital-0" / GUARD).exists():
        assert on_guard(tmp_path, steps, "hospital-0") >= released(tmp_path)["hospital-0"]
    assert lived(processes, life.answer, tmp_path, steps) == 0
    left = released(tmp_path)["hospital-0"]
    assert left >= life.GRANTS * steps
    assert left <= on_guard(tmp_path, steps, "hospital-0") <= left + steps
