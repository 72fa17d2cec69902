"""What a tracker is, and what each is told under the same names: public numbers, and no place of a file or database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from fedprivacy.values.series import RoundPoint, RunFacts
from fedprivacy.values.wording import NO_PRIVACY

PROJECT = "fedprivacy"
"""What collects the runs: an experiment of MLflow, a project of W&B."""

_CHOICES = ("clipping", "device", "filter", "optimizer")


class Tracker(Protocol):
    """Is told of a run and of its finished rounds, in order; may fail without harm."""

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """A run begins, or goes on, whose files are in `folder`."""

    def record(self, point: RoundPoint) -> None:
        """A round is finished."""

    def end(self, status: str) -> None:
        """The run is over: "finished", "stopped" before its last round, or "failed" with an error."""


def scalars(point: RoundPoint, *, private: bool = True) -> dict[str, float]:
    """A round's numbers; not all are finite. Of a run that is not private, a baseline, there is no epsilon."""
    return {
        **{f"metrics/{name}": float(value) for name, value in point.metrics.items()},
        **({f"epsilon/{name}": value for name, value in asdict(point.epsilons).items()} if private else {}),
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
    names = {"task": facts.task, "strategy": facts.strategy}
    if not facts.private:
        return numbers | choices | names | dict.fromkeys(("epsilon", "noise-multiplier"), NO_PRIVACY)
    same = 0.0 < facts.noise_multiplier >= facts.largest_noise_multiplier
    noise = facts.noise_multiplier if same else facts.noise_text
    return numbers | choices | names | {"epsilon": facts.budget, "noise-multiplier": noise}


def guarantee(facts: RunFacts) -> dict[str, float | str]:
    """What the epsilons mean: against whom, by which accountant, for which neighbours, at which delta."""
    if not facts.private:
        return {"guarantee": NO_PRIVACY}
    return {"view": "server", "accountant": "PLD", "relation": facts.relation, "delta": facts.delta}
