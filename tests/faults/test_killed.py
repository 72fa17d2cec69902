"""SIGKILL at every labelled step of client and server, 20 seeds each: never is less counted than was released."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from fedprivacy.failpoints import CLIENT_POINTS, SERVER_POINTS
from fedprivacy.flower.accounts import WITNESS
from fedprivacy.flower.node import ODOMETER
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.odometer import Odometer
from tests.faults import life

SEEDS = range(20)

TIMES = {
    "odometer.before-slot": 6,  # a charge and a seal in each of three rounds
    "odometer.slot-written": 6,
    "odometer.appended": 6,
    "server.run-opened": 1,
    "ledger.before-settle": 4,  # commit and void in each of two rounds
    "server.round-recorded": 3,  # round 0, too
    "server.checkpoint-written": 3,
    "server.checkpointed": 3,
}
"""How often a life that nobody ends reaches a point, where it is not once a round."""


@pytest.fixture(scope="module")
def processes():
    """Children of a process that has everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.life"])
    return context


def lived(processes, what, *arguments) -> int:
    """How a process ended."""
    process = processes.Process(target=what, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def released(folder: Path) -> dict[str, int]:
    """Steps that truly left each client, each release once; no charge may have led to two different ones."""
    updates, steps = defaultdict(set), {}
    for fact in lines(folder / life.RELEASED):
        key = (fact["client"], fact["run"], fact["round"], fact["attempt"])
        updates[key].add(fact["update"])
        steps[key] = fact["steps"]
    assert all(len(different) == 1 for different in updates.values()), "a charge was trained twice"
    sums: dict[str, int] = defaultdict(int)
    for (client, *_), count in steps.items():
        sums[client] += count
    return sums


def on_odometer(folder: Path, seed: int, client: str) -> int:
    return sum(Odometer(folder / client / ODOMETER, life.plan(folder, seed).config.budget).history().values())


def on_ledger(folder: Path, seed: int, client: str) -> int:
    account = Ledger(life.plan(folder, seed).config.ledger).accounts([f"blobs/{client}"])
    return sum(account[f"blobs/{client}"].history.values()) if account else 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", CLIENT_POINTS)
def test_a_client_killed_anywhere_counts_all_that_left_it_and_answers_again(processes, tmp_path, point, seed):
    times = 1 + seed % TIMES.get(point, life.GRANTS)
    assert lived(processes, life.answer, tmp_path, seed, point, times) == -signal.SIGKILL
    if (tmp_path / "hospital-0" / ODOMETER).exists():
        assert on_odometer(tmp_path, seed, "hospital-0") >= released(tmp_path)["hospital-0"]
    assert lived(processes, life.answer, tmp_path, seed) == 0
    left, steps = released(tmp_path)["hospital-0"], life.plan(tmp_path, seed).config.local_steps
    assert left >= life.GRANTS * steps
    assert left <= on_odometer(tmp_path, seed, "hospital-0") <= left + steps


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", SERVER_POINTS)
def test_a_server_killed_anywhere_counts_all_that_was_released_and_goes_on(processes, tmp_path, point, seed):
    times = 1 + seed % TIMES.get(point, life.ROUNDS)
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
        assert left <= on_odometer(folder, seed, client) <= on_ledger(folder, seed, client)
    witness = folder / WITNESS
    ledger = Ledger(life.plan(folder, seed).config.ledger)
    verify_ledger(ledger, witnesses=[read_witness(witness)] if witness.exists() else [])
    ledger.close()
