"""Histories of runs that never ran, for the tests of figures and reports."""

import math
import random

from fedprivacy.runs.records.history import RunHistory
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.runs import RoundResult
from fedprivacy.values.spent import ClientSpent

LOCAL_STEPS = 4
DELTA = 1e-4
NOISE = 2.1374


def settings(**changed):
    """Every setting by hyphenated key, with some of them changed."""
    return {
        "task": "digits",
        "clients": 10,
        "rounds": 60,
        "local-steps": LOCAL_STEPS,
        "epsilon": 3.0,
        "delta": DELTA,
        "noise-multiplier": None,
        "strategy": "fedavg",
        "seed": None,
        "out": "",
    } | {key.replace("_", "-"): value for key, value in changed.items()}


def run_history(
    joins,
    rounds,
    *,
    budget=3.0,
    quota=60,
    failures=None,
    metric="accuracy",
    value=lambda n: 0.9 * n / (n + 5),
    relation=NeighbouringRelation.ZERO_OUT,
    **changed,
):
    """A run in which each client is asked in the rounds that `joins` gives it, until its quota of rounds is charged.

    Of every client's budget, sqrt(rounds charged / quota) is spent, less a little. Failures are reasons by client and
    round; `value` is that of the metric after a round.
    """
    failures = failures or {}
    scale = 0.996 * (budget if math.isfinite(budget) else 5.0)
    charged = dict.fromkeys(joins, 0)
    records = []
    for number in range(1, rounds + 1):
        asked = [c for c, joined in joins.items() if joined(number) and (charged[c] < quota or math.isinf(budget))]
        for client_id in asked:
            charged[client_id] += 1
        failed = {c: failures[c, number] for c in asked if (c, number) in failures}
        spent = {
            c: ClientSpent(
                client_id=c,
                epsilon=scale * math.sqrt(charged[c] / quota),
                delta=DELTA,
                budget_epsilon=budget,
                rounds=charged[c],
                steps=LOCAL_STEPS * charged[c],
                steps_left=LOCAL_STEPS * (quota - charged[c]) if math.isfinite(budget) else 10**9,
                sampling_rate=0.2,
                noise_multiplier=NOISE,
            )
            for c in joins
        }
        participants = tuple(c for c in asked if c not in failed)
        metrics = {} if metric is None else {metric: value(number)}
        records.append(RoundResult(number, metrics, spent, participants, failed))
    return RunHistory(
        settings=settings(epsilon=budget if math.isfinite(budget) else None, **changed),
        noise_multiplier=NOISE,
        relation=relation,
        task_metric=metric or "accuracy",
        start=RoundResult(0, {}, {}, (), {}),
        rounds=tuple(records),
    )


def alike(clients=10, rounds=60, **options):
    """Every client joins every round."""
    return run_history({f"client-{n}": lambda _: True for n in range(1, clients + 1)}, rounds, **options)


def unlike(clients, rounds=60, **options):
    """Every client joins rounds of its own choice, about half of them."""

    def joins(n):
        chosen = {number for number in range(1, rounds + 1) if random.Random(1000 * n + number).random() < 0.5}
        return chosen.__contains__

    return run_history({f"client-{n}": joins(n) for n in range(1, clients + 1)}, rounds, **options)
