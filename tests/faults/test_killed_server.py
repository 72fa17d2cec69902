"""SIGKILL at every labelled step of a server, 20 seeds each: never is less counted than was released."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fedprivacy._support.failpoints import SERVER_POINTS
from fedprivacy.flower.server.accounts import WITNESS
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import read_witness, verify_ledger
from tests.faults import life
from tests.faults.killing import SEEDS, lines, lived, on_guard, on_ledger, released, which_time


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", SERVER_POINTS)
def test_a_server_killed_anywhere_counts_all_that_was_released_and_goes_on(processes, tmp_path, point, seed):
    times = which_time(point, seed, life.ROUNDS)
    assert lived(processes, life.serve, tmp_path, seed, point, times) == -signal.SIGKILL
    check_books(tmp_path, seed)
    assert lived(processes, life.serve, tmp_path, seed) == 0
    check_books(tmp_path, seed)
    assert lines(tmp_path / life.RECORDED)[-1] == {"round": life.ROUNDS}
    steps = life.ROUNDS * life.plan(tmp_path, seed).config.local_steps
    assert all(on_ledger(tmp_path, seed, client) == steps for client in released(tmp_path))
    assert len(released(tmp_path)) == 2


def check_books(folder: Path, seed: int) -> None:
    """Both books hold at least what left, the server's at least what the client's does, and the journal is whole."""
    for client, left in released(folder).items():
        assert left <= on_guard(folder, seed, client) <= on_ledger(folder, seed, client)
    witness = folder / WITNESS
    ledger = Ledger(life.plan(folder, seed).config.ledger)
    verify_ledger(ledger, witnesses=[read_witness(witness)] if witness.exists() else [])
    ledger.close()
