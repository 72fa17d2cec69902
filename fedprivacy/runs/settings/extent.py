"""Settings of a run's extent: its task, the number of clients, and the numbers of rounds and of local steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import WHOLE, KnownSettings, SettingsGroup, setting
from fedprivacy.tasks.augmentation import LARGEST_MULTIPLICITY
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK
from fedprivacy.values.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class ExtentSettings(SettingsGroup, question="What to train?", basic=("task", "clients", "rounds", "local-steps")):
    """The task, its clients, and the numbers of rounds and of local steps."""

    task: str = setting(f"A built-in task ({', '.join(BUILT_IN)}) or path/to/file.py:name.", DEFAULT_TASK)
    clients: int = setting("How many clients to simulate, or to wait for in a deployment.", bounds=WHOLE)
    rounds: int = setting("Number of rounds.", bounds=WHOLE)
    local_steps: int = setting("Local steps of DP-SGD in each round.", bounds=WHOLE)
    local_evaluation: int = setting(
        "Every so many rounds clients also release noisy means of what their own records score under their model, "
        "charged as one more local step; 0: never.",
        0,
        bounds=(0, 10**9),
    )

    @property
    def schedule(self) -> Schedule:
        """The steps that each round is charged."""
        return Schedule(self.local_steps, self.local_evaluation)

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find local evaluations that nobody would make or could compare."""
        return known.problems(_evaluates_without_privacy, _evaluates_too_rarely)


def _evaluates_without_privacy(local_evaluation: int, privacy: bool) -> Iterator[str]:
    if local_evaluation and not privacy:
        yield (
            f"local-evaluation is {local_evaluation} and privacy is off; leave local-evaluation open: the server's own "
            "evaluation serves to compare the two."
        )


def _evaluates_too_rarely(local_evaluation: int, rounds: int) -> Iterator[str]:
    if local_evaluation > rounds:
        yield (
            f"local-evaluation is {local_evaluation} and rounds is {rounds}, so that no round would evaluate; give at "
            f"most {rounds}, or leave it open."
        )


@dataclass(frozen=True, kw_only=True)
class TaskSettings(SettingsGroup, question="Which model to begin with, and what to hold out?"):
    """The model to begin with, views of records and held-out records."""

    augmentation_multiplicity: int = setting(
        "Random views of each record (Task.augmentation) over which its gradient is averaged before it is clipped: no "
        "epsilon, and so many times the work; 0: the record as it is.",
        0,
        bounds=(0, LARGEST_MULTIPLICITY),
    )
    initial_model: str = setting(
        "A safetensors file with parameters that the global model begins with: public, such as another run's model of "
        "public records. Left open: the task's own new model.",
        "",
    )
    held_out_evaluation: int = setting(
        "Simulated: number of rounds between two measurements of each client's model; the last round is always "
        "measured, and 0 means it alone. The task holds out the records and declares them public (Task.held_out).",
        0,
        bounds=(0, 10**9),
    )
