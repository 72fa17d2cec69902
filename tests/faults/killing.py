"""What the tests that kill a process share: whose life it was, what left it, and what the books say of it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import Guard
from fedprivacy.ledger import Ledger
from tests.faults import life

STEPS = 3
"""At most, in a round: a life is lived with one step, with two, and with so many."""

TIMES = {
    "guard.before-slot": 6,  # a charge and a seal in each of three rounds
    "guard.slot-written": 6,
    "guard.appended": 6,
    "server.run-opened": 1,
    "ledger.before-settle": 4,  # commit and void in each of two rounds
    "server.round-recorded": 3,  # round 0, too
    "server.checkpoint-written": 3,
    "server.checkpointed": 3,
}
"""How often a life that nobody ends reaches a point, where it is not once a round."""


def deaths(points: tuple[str, ...], rounds: int) -> list[object]:
    """(point, times, steps): at each point, the times that a life reaches it and the steps of a round, turn by turn.

    A life depends on nothing else: when both come round together, all of them were tried.
    """
    found = []
    for point in points:
        reached = TIMES.get(point, rounds)
        for turn in range(math.lcm(reached, STEPS)):
            marks = [pytest.mark.exhaustive] if turn else []
            found.append(pytest.param(point, 1 + turn % reached, 1 + turn % STEPS, marks=marks))
    return found


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


def on_guard(folder: Path, steps: int, client: str) -> int:
    return sum(Guard(folder / client / GUARD, life.plan(folder, steps).config.budget).history().values())


def on_ledger(folder: Path, steps: int, client: str) -> int:
    account = Ledger(life.plan(folder, steps).config.ledger).accounts([f"blobs/{client}"])
    return sum(account[f"blobs/{client}"].history.values()) if account else 0
