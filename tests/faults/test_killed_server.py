"""SIGKILL at every labelled step of a server: never is less counted than was released."""

from __future__ import annotations

import pytest

from fedprivacy._support.failpoints import SERVER_POINTS
from tests.faults import life
from tests.faults.killing import check_books, deaths, lines, lived, on_ledger, released
from tests.processes import KILLED


@pytest.mark.parametrize(("point", "times", "steps"), deaths(SERVER_POINTS, quick=("server.answered", 2, 2)))
def test_a_server_killed_anywhere_counts_all_that_was_released_and_goes_on(tmp_path, point, times, steps):
    assert lived(life.serve, tmp_path, steps, point, times) == KILLED
    check_books(tmp_path)
    assert lived(life.serve, tmp_path, steps) == 0
    check_books(tmp_path)
    assert lines(tmp_path / life.RECORDED)[-1] == {"round": life.ROUNDS}
    assert all(on_ledger(tmp_path, client) == life.ROUNDS * steps for client in released(tmp_path))
    assert len(released(tmp_path)) == 2
