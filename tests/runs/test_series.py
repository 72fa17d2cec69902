"""A run is the same wherever it is read: from a folder's history in memory, or from the run store."""

import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from fedprivacy.runs.records.history import RunHistory, costs_of, series_of
from fedprivacy.runs.records.store import RunStore
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.series import MOST_CURVES
from tests.dashboard.shown import record
from tests.runs.histories import settings
from tests.runs.store.made_up import facts, finished, growing, spent

MANY = [f"client-{n:03d}" for n in range(MOST_CURVES + 10)]


def accounts(*of_each, budget=3.0):
    return [spent(f"client-{n}", epsilon, budget=budget, steps_left=left) for n, (epsilon, left) in enumerate(of_each)]


def exhausted_by(number):
    """300 clients, a hundred of whom are exhausted in each round, each at an epsilon of its own."""
    return [(0.001 * n + min(number, 1 + n // 100), 0 if number > n // 100 else 4) for n in range(300)]


RUNS = {
    "a fan": growing(MANY, 40, pace={name: 0.05 + 0.01 * n for n, name in enumerate(MANY)}),
    "a raised budget": [finished(n, accounts((0.5 * n, left))) for n, left in enumerate([4, 2, 0, 5, 3, 0, 0])],
    "a late client": [
        finished(0, accounts((0.0, 8))),
        finished(1, accounts((0.5, 7))),
        finished(2, accounts((0.6, 6), (0.1, 7))),
    ],
    "in trouble": [
        finished(0, accounts(*[(0.0, 8)] * 3)),
        finished(1, accounts(*[(0.1, 7)] * 3), failures={"client-1": "no-reply"}, unreconciled=["client-1"]),
        finished(2, accounts(*[(0.2, 6)] * 3), failures={"client-2": "guard-unusable"}),
    ],
    "without a bound": [
        finished(n, [*accounts((0.5 * n, 4)), spent("x", math.inf if n else 0.0, budget=math.inf)]) for n in range(3)
    ],
    "not begun": growing(["a"], 0),
    "more exhausted than a fan marks": [finished(n, accounts(*exhausted_by(n))) for n in range(4)],
}


@pytest.mark.parametrize("name", [*[*RUNS][:-1], pytest.param([*RUNS][-1], marks=pytest.mark.exhaustive)])
def test_figures_are_drawn_from_the_same_and_clients_stand_the_same(name, tmp_path):
    url, results = f"sqlite:///{tmp_path / 'ledger.db'}", RUNS[name]
    record(url, facts(), results)
    relation = NeighbouringRelation.ZERO_OUT
    memory = RunHistory(settings(rounds=10), 1.5, relation, "accuracy", results[0], tuple(results[1:])).stored
    with closing(RunStore(url)) as store:
        stored = store.run("run-1")
        assert (memory.finished, list(memory.budgets())) == (stored.finished, stored.budgets())
        for least in (False, True):
            assert memory.spenders(50, least=least) == stored.spenders(50, least=least)
        one, other = (replace(series_of(run, run.spenders(1)), facts=facts()) for run in (memory, stored))
        assert one == other
        one, other = map(costs_of, (memory, stored))
    assert one == other and np.array_equal(one.growth, other.growth, equal_nan=True)
