"""The configuration of a run: the settings of `fields` together, their defaults, every problem reported at once.

A key is spelt the same way in `flwr run --run-config`, in `[tool.flwr.app.config]`, in a run's file and as a
command-line option: `noise_multiplier` here is `noise-multiplier` there. An empty string leaves a key open; then the
task's recipe decides, or the strategy's entry, or the setting's default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from fedprivacy._support.settings import ConfigError, Value, fields_of, key_of, not_allowed, parse
from fedprivacy.accounting import DEFAULT_FILTER
from fedprivacy.accounting.filters import FILTER_OF_MIXTURES
from fedprivacy.runs.settings.fields import (
    LEDGER,
    AlgorithmSettings,
    ExecutionSettings,
    ExtentSettings,
    OptimizerSettings,
    ParticipationSettings,
    PrivacySettings,
    SettingsGroup,
    StrategySettings,
    TaskSettings,
    UserLevelSettings,
)
from fedprivacy.runs.settings.prohibitions import (
    PROHIBITIONS,
    SWITCHES,
    KnownSettings,
    question_problems,
    recipe_problems,
    task_problems,
)
from fedprivacy.runs.settings.strategies import DEFAULT_STRATEGY, STRATEGIES
from fedprivacy.tasks.identity import BUILT_IN, DEFAULT_TASK
from fedprivacy.training.algorithms import ALGORITHM_SETTINGS, ALGORITHMS, Algorithm, LocalTraining, arguments_of
from fedprivacy.training.optimizers import LEARNING_RATE_SCHEDULES
from fedprivacy.values.budget import Allowance

if TYPE_CHECKING:
    from fedprivacy.tasks import Task

__all__ = [
    "ASKING_KEYS",
    "BASIC",
    "CONFIG",
    "FIELDS",
    "GROUPS",
    "LEDGER",
    "RUNS",
    "SWEEP_KEYS",
    "TRAINING_KEYS",
    "ConfigError",
    "RunConfig",
    "Value",
    "resolve",
    "simulation_settings",
    "words_of",
]

RUNS = "runs"
"""Folder in which simulations make their own folders."""

USUAL_SPEND = 0.1
"""Default share of a budget's epsilon (at most 10) for a task's own question; default epsilon for other questions."""

CONFIG = "config.json"
"""Name of the configuration in a run's folder: every setting, and the noise that was used."""

_DEFAULT_SEED = 0
"""Default seed of simulations on bundled records."""

_PRIVATE_ONLY = {"noise_multiplier", "question_spend", "spend", "autocast"}
"""Settings that a run without privacy ignores."""

NAMING = ("name", "tags", "note")
"""Settings that name a run, and change nothing of it."""

PLACES = ("out", "resume")
"""Settings of the folder that a run writes to."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(
    ExtentSettings,
    PrivacySettings,
    OptimizerSettings,
    AlgorithmSettings,
    TaskSettings,
    StrategySettings,
    ParticipationSettings,
    UserLevelSettings,
    ExecutionSettings,
):
    """A complete configuration: the settings of all groups, and what needs settings of several groups."""

    def algorithm_in(self, round: int) -> Algorithm:
        """Return the clients' algorithm in a round: in the last `fine_tuning_rounds`, local training."""
        if round > self.rounds - self.fine_tuning_rounds:
            return LocalTraining()
        given = {name: getattr(self, name) for name in ALGORITHM_SETTINGS}
        taken = arguments_of(self.algorithm)
        return ALGORITHMS[self.algorithm](**{k: v for k, v in given.items() if v is not None and k in taken})

    def learning_rate_in(self, round: int) -> float:
        """Step size of the local steps in a round, from 1."""
        return self.learning_rate * LEARNING_RATE_SCHEDULES[self.learning_rate_schedule](round, self.rounds)

    def allowance(self, known: Allowance | None = None) -> Allowance:
        """Return the allowance that this run asks for on a dataset: its budget and filter.

        A filter that is left open is that of `known`, the dataset's earlier allowance, or without one the default.
        """
        new = DEFAULT_FILTER if self.spend is None and self.question_spend is None else FILTER_OF_MIXTURES
        return Allowance(self.budget, self.filter or (known.filter if known else new))

    def public(self) -> dict[str, Value | None]:
        """Every setting as JSON types, under its hyphenated key; an infinite epsilon becomes None."""
        values = ((key, getattr(self, field.name)) for key, field in FIELDS.items())
        return {key: None if value == math.inf else value for key, value in values}

    def settings_to_repeat(self) -> dict[str, Value]:
        """The settings, by hyphenated key, that make the same run again, in a folder of its own."""
        useless = {"out", "resume"}  # the folder that they name holds this run
        if self.batch_size is not None:
            useless.add("sampling-rate")  # the recipe's, which the batch size stands for
        if not self.privacy:
            useless.add("epsilon")  # infinite: with privacy again, it is the task's own
        return {k: v for k in FIELDS if k not in useless and (v := getattr(self, FIELDS[k].name)) not in (None, "")}

    @classmethod
    def from_public(cls, settings: Mapping[str, Value | None]) -> RunConfig:
        """The configuration whose `public` this is.

        Raises:
            ConfigError: another version of fedprivacy wrote it, with other settings.
        """
        others = sorted(settings.keys() ^ FIELDS.keys())
        if others:
            written = "the settings of the run were written by a version of fedprivacy that has other ones"
            raise ConfigError(f"{written} ({', '.join(others)}); use that version.")
        values = {FIELDS[key].name: value for key, value in settings.items()}
        return cls(**values | {"epsilon": math.inf if values["epsilon"] is None else values["epsilon"]})  # type: ignore[arg-type]

    def check_same(self, given: Mapping[str, Value | None]) -> None:
        """Refuse settings that are given for this run, which goes on, and are not its own; None and "" are left open.

        Raises:
            ConfigError: lists each that is no setting, of a wrong type, or another than this run's.
        """
        settings, wrong = parse_settings(given)
        problems = [*wrong.values()] + [
            f"{key_of(name)} is {value}, but the run goes on with its own, {_value_words(getattr(self, name))}; leave "
            f"{key_of(name)} open, or start a new run."
            for name, value in settings.items()
            if _as_kept(name, value) != _as_kept(name, getattr(self, name))
        ]
        if problems:
            raise ConfigError(problems)


GROUPS = cast("tuple[type[SettingsGroup], ...]", RunConfig.__bases__)
"""The groups of settings, in the order in which people read them."""

FIELDS = {key: field for group in GROUPS for key, field in fields_of(group).items()}
"""The dataclass field of every key."""

BASIC = frozenset(key for group in GROUPS for key in group.basic)
"""Settings that a beginner needs."""

TRAINING_KEYS = tuple(key for key in FIELDS if key != "questions")
"""Settings of a run that trains."""

SWEEP_KEYS = tuple(
    key for key in TRAINING_KEYS if key not in {"privacy", "seed", "out", "ledger", "resume", "signing-key"}
)
"""Settings that a sweep takes lists of. Every run has a ledger of its own: on one, they would share each budget."""

ASKING_KEYS = (
    *("task", "clients", "epsilon", "delta", "spend", "noise-multiplier", "client-terms", "filter", "seed", "out"),
    *("ledger", "signing-key", "node-timeout", "round-timeout"),
)
"""Settings of a run that asks, besides its questions: those that are not for training alone."""

_NO_PROFILE = (
    "profile is not a setting: how long a client's private work takes may say something of its records, so that only "
    "'fedprivacy simulate --profile' and fp.simulate(..., profile=True) write a profile; leave it out here."
)

_DEFAULTS = {f.name: f.default for f in FIELDS.values() if f.default not in (dataclasses.MISSING, None, "")}


def differing_settings(runs: Sequence[Mapping[str, object]], *, ignored: Collection[str] = PLACES) -> list[str]:
    """List the keys of the settings in which runs differ; a run without a key differs from one with a value.

    >>> differing_settings([{"epsilon": 1.0, "out": "a"}, {"epsilon": 3.0, "out": "b"}])
    ['epsilon']
    """
    keys = dict.fromkeys(key for settings in runs for key in settings if key not in ignored)
    return [key for key in keys if any(settings.get(key) != runs[0].get(key) for settings in runs)]


def simulation_settings(given: Mapping[str, Value | None], task: Task | None = None) -> dict[str, Value]:
    """Settings of a simulation, without those that are left open by None.

    Runs on bundled, public records are repeatable; a user's own records get noise that nobody can repeat.
    """
    named = {key: value for key, value in given.items() if value is not None}
    public = task is None and "resume" not in named and named.get("task", DEFAULT_TASK) in BUILT_IN
    return ({"seed": _DEFAULT_SEED} if public else {}) | named


def words_of(field: dataclasses.Field[Value | None]) -> str:
    """Describe a setting for people: its meaning and its default."""
    default = "the task's own" if field.default is dataclasses.MISSING else field.default
    return str(field.metadata["help"]) + (f" Default: {default}." if default not in ("", None) else "")


def resolve(given: Mapping[str, Value | None], task: Task | None = None) -> RunConfig:
    """Complete and check a configuration.

    Args:
        given: settings by hyphenated key; None and "" mean "left open".
        task: the task, which the settings then do not name; None: the one that they name.

    Raises:
        ConfigError: lists unknown keys, wrong types, values out of range and impossible combinations, all of them.
    """
    from fedprivacy.tasks.loader import open_task  # torch: seconds that `--help` need not wait for
    from fedprivacy.tasks.opened import TaskError

    settings, wrong = parse_settings(given)
    together = []
    if {"batch_size", "sampling_rate"} <= settings.keys():  # both given: a recipe always has a sampling rate
        together.append("batch-size and sampling-rate both say how many records join a step; give one of them.")
    opened = None
    try:
        opened = open_task(cast(str | None, settings.get("task")), task)
    except TaskError as error:
        together.append(str(error))
    if opened:
        together += task_problems(opened) + recipe_problems(opened.recipe, settings, wrong)
        recipe = dataclasses.asdict(opened.recipe)
        if "noise_multiplier" in settings and not {"epsilon", "spend"} & settings.keys():
            recipe["epsilon"] = math.inf  # noise without a budget asks to measure, not to enforce
        if "optimizer" in settings and settings["optimizer"] != opened.recipe.optimizer:
            recipe |= {"momentum": 0.0, "weight_decay": 0.0}  # the recipe's are for its own optimiser
        settings = recipe | {"task": opened.word} | settings
    strategy = STRATEGIES.get(str(settings.get("strategy", DEFAULT_STRATEGY)))  # None: one of the user's own
    settings = _DEFAULTS | (dict(strategy.defaults) if strategy else {}) | settings
    if not settings["privacy"]:
        settings = {name: value for name, value in settings.items() if name not in _PRIVATE_ONLY}
        settings["epsilon"] = math.inf  # of the private run beside it: here nothing would keep them
    wrong |= not_allowed(FIELDS, settings)
    together += question_problems(opened, settings, wrong) if opened else []
    if opened and opened.standardise is not None and settings["privacy"] and "epsilon" not in wrong:
        settings.setdefault("question_spend", USUAL_SPEND * min(float(settings["epsilon"]), 10.0))
    known = KnownSettings(FIELDS, settings, wrong, SWITCHES)
    alone = [line for words in wrong.values() for line in words.splitlines()]
    if problems := [*alone, *together, *known.problems(PROHIBITIONS)]:
        raise ConfigError(problems)
    return RunConfig(**{name: _as_kept(name, value) for name, value in settings.items()})  # type: ignore[arg-type]


def parse_settings(given: Mapping[str, Value | None]) -> tuple[dict[str, Value], dict[str, str]]:
    """Parse the settings of a run as `parse` does; a key `profile` gets a problem that says why that is no setting."""
    settings, wrong = parse(FIELDS, given)
    return settings, wrong | ({"profile": _NO_PROFILE} if "profile" in wrong else {})


def _as_kept(name: str, value: Value) -> Value:
    """Return a setting's value as a configuration keeps it: a ledger that is named by its file becomes its URL."""
    if name != "ledger" or not value:
        return value
    from fedprivacy.ledger import ledger_url

    return ledger_url(str(value))


def _value_words(value: Value | None) -> str:
    return "which was left open" if value in (None, "") else str(value)
