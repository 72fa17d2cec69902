"""Rounds of runs that never ran, as a strategy would tell of them."""

import math

from fedprivacy.values.runs import RoundResult
from fedprivacy.values.series import RunFacts
from fedprivacy.values.spent import ClientSpent

DELTA = 1e-5


def facts(run_id="run-1", rounds=10, name=None, **settings):
    given = {"task": "digits", "rounds": rounds, "local-steps": 2, "delta": DELTA, "epsilon": 3.0, "seed": None}
    named = {key.replace("_", "-"): value for key, value in settings.items()}
    return RunFacts(run_id, name or run_id, given | {"strategy": "fedavg"} | named, 1.5, "zero-out", "accuracy")


def spent(client_id, epsilon, *, budget=3.0, rounds=1, steps_left=8, q=0.1):
    return ClientSpent(client_id, epsilon, DELTA, budget, rounds, 2 * rounds, steps_left, q, 1.5)


def finished(number, accounts, *, participants=None, failures=None, unreconciled=(), **metrics):
    """A round after which clients have these accounts, all of them averaged unless said otherwise."""
    failures = failures or {}
    names = [account.client_id for account in accounts]
    averaged = [name for name in names if name not in failures] if participants is None else participants
    return RoundResult(
        number,
        metrics or {"accuracy": number / (number + 1)},
        {account.client_id: account for account in accounts},
        tuple(averaged if number else ()),
        failures,
        tuple(unreconciled),
    )


def growing(names, rounds, *, budget=3.0, pace=None):
    """Rounds 0 to `rounds` in which every client's epsilon grows by its own pace, until its budget is spent."""
    pace = pace or {name: 0.1 * (place + 1) for place, name in enumerate(names)}

    def account(name, number):
        most = math.ceil(budget / pace[name]) if math.isfinite(budget) else 10**6
        charged = min(number, most)
        return spent(
            name, min(pace[name] * charged, budget), budget=budget, rounds=charged, steps_left=2 * (most - charged)
        )

    return [finished(number, [account(name, number) for name in names]) for number in range(rounds + 1)]
