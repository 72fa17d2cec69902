"""Protocol of trackers, and the public numbers that all get under the same names; no paths of files or databases."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from fedprivacy.values.series import RoundPoint, RunFacts
from fedprivacy.values.wording import NO_PRIVACY

PROJECT = "fedprivacy"
"""Name of the collection of runs: an experiment of MLflow, a project of W&B."""

_CHOICES = ("clipping", "device", "filter", "optimizer")


class Tracker(Protocol):
    """Receiver of a run and its finished rounds, in order; may fail without harm."""

    def begin(self, facts: RunFacts, folder: Path) -> None:
        """Note a run that begins or resumes, and whose files are in `folder`."""

    def record(self, point: RoundPoint) -> None:
        """Note a finished round."""

    def end(self, status: str) -> None:
        """Note the end of the run: "finished", "stopped" before its last round, or "failed" with an error."""


def scalars(point: RoundPoint, *, private: bool = True) -> dict[str, float]:
    """Return a round's numbers; not all are finite. A run that is not private, a baseline, has no epsilon."""
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
    """Return the settings that are numbers or name a choice, with the noise multiplier that was used.

    Other texts are not passed on: they are paths and addresses, and the address of a ledger may hold a password. A name
    that includes a file is passed on without the file.
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
    """Describe the epsilons: observer, accountant, neighbouring relation, unit of privacy, delta."""
    if not facts.private:
        return {"guarantee": NO_PRIVACY}
    neighbours = {"relation": facts.relation, "unit": facts.unit}
    return {"view": "server", "accountant": "PLD", **neighbours, "delta": facts.delta}
