"""What trackers are told, under the same names in each: public numbers, and no place where a file or database lies."""

from __future__ import annotations

from dataclasses import asdict

from fedprivacy.values.series import RoundPoint, RunFacts

PROJECT = "fedprivacy"
"""What collects the runs: an experiment of MLflow, a project of W&B."""

_CHOICES = ("clipping", "device", "filter", "optimizer")


def scalars(point: RoundPoint) -> dict[str, float]:
    """A round's numbers; not all are finite."""
    return {
        **{f"metrics/{name}": float(value) for name, value in point.metrics.items()},
        **{f"epsilon/{name}": value for name, value in asdict(point.epsilons).items()},
        "clients/enrolled": point.clients,
        "clients/participants": point.participants,
        "clients/failed": point.failed,
        "clients/exhausted": point.exhausted,
        "clients/unreconciled": point.unreconciled,
    }


def settings(facts: RunFacts) -> dict[str, float | str]:
    """The settings that are numbers or name a choice, the noise multiplier as it was used.

    Other texts stay here. They are paths and addresses, and the address of a ledger may hold a password. Of what a user
    names by a file, the file stays here.
    """
    numbers = {key: value for key, value in facts.settings.items() if isinstance(value, int | float)}
    choices = {key: facts.settings[key] for key in _CHOICES if facts.settings.get(key)}
    known = {
        "task": facts.task,
        "strategy": facts.strategy,
        "epsilon": facts.budget,
        "noise-multiplier": facts.noise_multiplier,
    }
    return numbers | choices | known


def guarantee(facts: RunFacts) -> dict[str, float | str]:
    """What the epsilons mean: against whom, by which accountant, for which neighbours, at which delta."""
    return {"view": "server", "accountant": "PLD", "relation": facts.relation, "delta": facts.delta}
