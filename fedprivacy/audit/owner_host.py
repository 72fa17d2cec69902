"""A data owner's host as it is configured: what its client would run, and the grants that it would take at the worst.

Everything is read as the ClientApp reads it. The guard is not opened, and nothing is written anywhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.app import UserConfig

from fedprivacy._support.discretion import hushed, kind_and_place
from fedprivacy.flower.client.local import own_shard, works_on
from fedprivacy.flower.client.node import NODE_CONFIG, NodeSettings, Refused
from fedprivacy.flower.wire.messages import RefusalCode
from fedprivacy.gradients import LossShapeError, UnsupportedModelError
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.client_terms import client_terms_of
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, Value
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.tasks import Shard, Task, TaskError, load_task

TRAINING = (
    *("rounds", "local-steps", "sampling-rate", "batch-size", "noise-multiplier", "epsilon", "delta", "spend"),
    *("local-evaluation", "clipping", "clipping-norm", "optimizer", "learning-rate", "momentum", "weight-decay"),
)
"""The settings of a run that reach a client."""

_LEAST_CONFIGURED, _MOST_CONFIGURED = FIELDS["noise-multiplier"].metadata["bounds"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node configuration, its task and its shard.

    Attributes:
        file: where it was read.
        given: every key and value, as Flower would hand them to the client.
        settings: the same, checked.
        word: what a run calls the task.
        task: the one that the client works on.
        brought: whether the app brings the task, since the configuration names none.
        shard: its own records, on its own device. What is computed of them stays in this process.
    """

    file: Path
    given: UserConfig
    settings: NodeSettings
    word: str
    task: Task
    brought: bool
    shard: Shard

    @classmethod
    def read(cls, config: Path, task: str | None = None) -> Node:
        """Read a file, or the one in a folder that `fedprivacy deploy init` made.

        Args:
            config: the file, or the folder that holds `NODE_CONFIG`.
            task: which one, as a run names it; None: the only one that the configuration allows.

        Raises:
            ConfigError: the client would not work as it is configured; says what to change, and nothing of any record.
        """
        file = config / NODE_CONFIG if config.is_dir() else config
        given = _given(file)
        try:
            with hushed():
                settings = NodeSettings.of(given)
                word, found = _task(file, settings, task)
                shard = works_on(found, own_shard(found, settings.folder, choose_device(settings.device)))
        except Refused as refused:
            raise ConfigError([_why(file, given, refused)]) from refused
        except (TaskError, LossShapeError, UnsupportedModelError) as error:
            raise ConfigError([f"{file}: {error}"]) from error
        except ConfigError as error:
            raise ConfigError([f"{file}: {problem}" for problem in error.problems]) from error
        except Exception as error:  # whose text may hold values
            raise ConfigError([_unreadable(file, given, error)]) from None
        return cls(file, given, settings, word, found, not settings.tasks, shard)

    def worst(self) -> TrainingPlan:
        """The costliest step that the configuration allows: everybody joins, with the least noise that it takes.

        Raises:
            ConfigError: no noise meets its budget.
        """
        one: dict[str, Value] = {"rounds": 1, "local-steps": 1, "sampling-rate": 1.0}
        least = min(max(self.settings.least_noise_multiplier, _LEAST_CONFIGURED), _MOST_CONFIGURED)
        if self.settings.budget.enforced:
            least = max(least, self._plan(one).noise.of())
        return self._plan(one | {"noise-multiplier": least})

    def planned(self, run: Mapping[str, Value]) -> TrainingPlan:
        """A run with these settings, as far as this client's own budget allows it.

        Args:
            run: settings of the run by hyphenated key; those that no client sees count for nothing, but for this
                client's line of client-terms.

        Raises:
            ConfigError: they are wrong, or this client would take no round of it.
        """
        own = client_terms_of(str(run.get("client-terms") or "")).of(self.settings.client_id).settings
        without = {"batch-size"} if "sampling-rate" in own else set()
        training = {key: value for key, value in run.items() if key in TRAINING and key not in without} | own
        asked = TrainingPlan.of(training, self.task)
        noise = asked.event(len(self.shard)).noise_multiplier
        settings, schedule = self.settings, asked.config.schedule
        steps = schedule.steps_in(schedule.local_evaluation)  # of the costliest round
        if noise < settings.least_noise_multiplier:
            raise ConfigError(
                [
                    f"The run's noise multiplier is {noise:.4g}, and this client takes no grant below "
                    f"{settings.least_noise_multiplier:g} (least-noise-multiplier): plan the run with more noise."
                ]
            )
        if steps > settings.most_steps:
            raise ConfigError(
                [f"A round takes {steps} steps, and this client takes {settings.most_steps} at most (most-steps)."]
            )
        kept = {key: value for key, value in training.items() if key not in {"spend", "epsilon", "delta"}}
        plan = self._plan(kept | {"noise-multiplier": noise})
        if plan.limit({}).quota({}, plan.event(len(self.shard))) < steps:
            raise ConfigError(
                [
                    f"This client's budget, epsilon {settings.budget.epsilon:g} at delta {settings.budget.delta:g}, "
                    "allows no round of the run: plan the run with more noise, or fewer records a step."
                ]
            )
        return plan

    def _plan(self, run: Mapping[str, Value]) -> TrainingPlan:
        """A run within this client's budget, on its device."""
        budget = self.settings.budget
        own: dict[str, Value] = {"epsilon": budget.epsilon, "delta": budget.delta}
        how: dict[str, Value] = {"device": self.settings.device, "autocast": self.settings.autocast}
        spent_by = self.settings.filter or self.settings.usual_filter
        return TrainingPlan.of({**run, **own, **how, "filter": spent_by}, self.task)


def run_settings(file: Path) -> dict[str, Value]:
    """Read a run's file of settings, such as the operator's `run.toml`.

    Raises:
        ConfigError: it cannot be read.
    """
    return _toml(file, "run-config", "name the file of the run's settings")


def _given(file: Path) -> UserConfig:
    found = _toml(file, "node", f"name this host's {NODE_CONFIG}, or the folder that 'fedprivacy deploy init' made")
    return {key: value for key, value in found.items() if value is not None}


def _toml(file: Path, option: str, remedy: str) -> dict[str, Value]:
    try:
        found: dict[str, Value] = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"{option} is '{file}', which cannot be read ({error}); {remedy}."]) from error
    return found


def _task(file: Path, settings: NodeSettings, word: str | None) -> tuple[str, Task]:
    """Return the name that a run has for the task, and the task."""
    if not settings.tasks:
        if word is None:
            raise ConfigError(["it names no task, since the app brings it; name the app's own, with --task FILE:NAME."])
        return word, settings.task(word, load_task(word))
    if word is None and len(settings.tasks) > 1:
        raise ConfigError([f"it allows several tasks; name one of them, with --task: {', '.join(settings.tasks)}."])
    word = word or next(iter(settings.tasks))
    return word, settings.task(word, None)


def _why(file: Path, given: UserConfig, refused: Refused) -> str:
    """Return what a client would say in its log, with the remedy."""
    key = given.get("key")
    if refused.code is RefusalCode.CLIENT_FAILED:
        return _unreadable(file, given, refused.__cause__ or refused)
    if key is not None and not Path(str(key)).exists():
        return f"{file}: key is '{key}', which is not there; 'fedprivacy deploy client-key NAME' makes it."
    return f"{file}: {refused}"


def _unreadable(file: Path, given: UserConfig, error: BaseException) -> str:
    return (
        f"{file}: folder is '{given.get('folder')}', and the task does not work on the records there "
        f"({kind_and_place(error)}); call the task's shard() yourself, on this host: what an error says may "
        "hold values and is not shown."
    )
