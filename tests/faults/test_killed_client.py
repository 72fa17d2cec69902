"""SIGKILL at every labelled step of a client: never is less counted than was released."""

from __future__ import annotations

import pytest

from fedprivacy._support.failpoints import CLIENT_POINTS
from fedprivacy.flower.client.node import GUARD
from tests.faults import life
from tests.faults.killing import deaths, lived, on_guard, released
from tests.processes import KILLED


@pytest.mark.parametrize(("point", "times", "steps"), deaths(CLIENT_POINTS, quick=("client.trained", 2, 2)))
def test_a_client_killed_anywhere_counts_all_that_left_it_and_answers_again(tmp_path, point, times, steps):
    assert lived(life.answer, tmp_path, steps, point, times) == KILLED
    if (tmp_path / "hospital-0" / GUARD).exists():
        assert on_guard(tmp_path, "hospital-0") >= released(tmp_path)["hospital-0"]
    assert lived(life.answer, tmp_path, steps) == 0
    left = released(tmp_path)["hospital-0"]
    assert left >= life.ROUNDS * steps
    assert left <= on_guard(tmp_path, "hospital-0") <= left + steps
    assert not list((tmp_path / "hospital-0").glob("*/.*"))  # no room that it held
