"""Deaths of processes: the moments at which they come, what had left by then, and what the books say of it."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from fedprivacy._support import failpoints
from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import Guard
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.runs.records.witnesses import WITNESS
from tests.faults import life
from tests.processes import in_child

REACHED = {
    "client.asked": (0, 2),  # for its grant, and for what it has answered already
    "client.replying": (0, 2),
    "guard.before-slot": (0, 2),  # with a charge and a seal
    "guard.slot-written": (0, 2),
    "guard.appended": (0, 2),
    "server.run-opened": (1, 0),
    "ledger.before-settle": (0, 2),  # with what is committed and what is void
    "server.round-recorded": (1, 1),
    "server.checkpoint-written": (1, 1),
    "server.checkpointed": (1, 1),
}
"""Number of times that a life reaches a point before its first round, and in each; (0, 1) where it is missing."""


def deaths(points, quick=None, moments=None) -> list:
    """(point, times, steps): at each point in the second of three rounds of two steps; soak: at every other moment.

    Args:
        points: where a process dies.
        quick: the death that everybody tries.
        moments: in the second round that are tried at each point before a change lands; all of them if open.
    """
    found = []
    for point in points:
        before, each = REACHED.get(point, (0, 1))
        second = (range(before + each + 1, before + 2 * each + 1) or [1])[:moments]
        for times, steps in product(range(1, before + life.ROUNDS * each + 1), (1, 2, 3)):
            lane = pytest.mark.exhaustive if times in second and steps == 2 else pytest.mark.soak
            moment = (point, times, steps)
            found.append(pytest.param(*moment, marks=[] if moment == quick else lane))
    return found


def lived(act, folder: Path, steps: int, point: str | None = None, times: int = 1) -> int:
    """Live a life, or the rest of one, in a forked process that dies at `point`; its exit code."""
    _warm()

    def child():
        torch.set_num_threads(1)
        if point is not None:
            failpoints.arm(point, times)
        act(folder, steps)

    return in_child(child)


@cache
def _warm() -> None:
    """Compute once, before the forks, what every life would compute anew."""
    with TemporaryDirectory() as folder:
        life.serve(Path(folder), 2)


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


def on_guard(folder: Path, client: str) -> int:
    return sum(Guard(folder / client / GUARD, life.BUDGET).history().values())


def on_ledger(folder: Path, client: str) -> int:
    account = Ledger(life.ledger_of(folder)).accounts([f"blobs/{client}"])
    return sum(account[f"blobs/{client}"].history.values()) if account else 0


def check_books(folder: Path) -> None:
    """Both books hold at least what left, the server's at least what the client's does, and the journal is whole."""
    for client, left in released(folder).items():
        assert left <= on_guard(folder, client) <= on_ledger(folder, client)
    witness = folder / WITNESS
    ledger = Ledger(life.ledger_of(folder))
    verify_ledger(ledger, witnesses=[read_witness(witness)] if witness.exists() else [])
    ledger.close()
