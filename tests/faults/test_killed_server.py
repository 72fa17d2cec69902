"""SIGKILL at every labelled step of a server, each time that it gets there: never is less counted than was released."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fedprivacy._support.failpoints import SERVER_POINTS
from fedprivacy.flower.server.accounts import WITNESS
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import read_witness, verify_ledger
from tests.faults import life
from tests.faults.killing import deaths, lines, lived, on_guard, on_ledger, released


@pytest.mark.parametrize(("point", "times", "steps"), deaths(SERVER_POINTS, life.ROUNDS))
def test_a_server_killed_anywhere_counts_all_that_was_released_and_goes_on(processes, tmp_path, point, times, steps):
    assert lived(processes, life.serve, tmp_path, steps, point, times) == -signal.SIGKILL
    check_books(tmp_path, steps)
    assert lived(processes, life.serve, tmp_path, steps) == 0
    check_books(tmp_path, steps)
    assert lines(tmp_path / life.RECORDED)[-1] == {"round": life.ROUNDS}
    assert all(on_ledger(tmp_path, steps, client) == life.ROUNDS * steps for client in released(tmp_path))
    assert len(released(tmp_path)) == 2


def check_books(folder: Path, steps: int) -> None:
    """Both books hold at least what left, the server's at least what the client's does, and the journal is whole."""
    for client, left in released(folder).items():
        assert left <= on_guard(folder, steps, client) <= on_ledger(folder, steps, client)
    witness = folder / WITNESS
    ledger = Ledger(life.plan(folder, steps).config.ledger)
    verify_ledger(ledger, witnesses=[read_witness(witness)] if witness.exists() else [])
    ledger.close()
