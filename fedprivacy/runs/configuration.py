"""The configuration of a run: one dataclass, one table of defaults, every problem reported at once.

A key is spelt the same way in `flwr run --run-config`, in `[tool.flwr.app.config]` and as a command-line option:
`noise_multiplier` here is `noise-multiplier` there. An empty string leaves a key open; then the task's recipe decides,
or the default below.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprivacy.accounting import DEFAULT_FILTER, FILTERS
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import CLIPPING_NORMS

if TYPE_CHECKING:
    from fedprivacy.tasks import Recipe, Task

STRATEGIES = ("fedavg", "fedavgm", "fedadam", "fedprox", "fedtrimmedavg", "krum")

CLIPPINGS = ("flat", "per-layer", "automatic", "adaptive")

OPTIMIZERS = ("sgd", "adam", "adamw")

TRACKERS = ("tensorboard", "mlflow", "wandb")

LEDGER = "ledger.db"
"""What a simulation names its own ledger, in its folder."""


class Engine(enum.StrEnum):
    """Where simulated clients run.

    `IN_PROCESS`: one after another in this process; the fastest for small models. `RAY`: in Ray's worker processes,
    several at once, on GPUs and clusters.
    """

    IN_PROCESS = "in-process"
    RAY = "ray"


Value = bool | int | float | str


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one line each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def _setting(words: str, default: Any = dataclasses.MISSING) -> Any:
    """A field with its documentation; without a default it is the task's recipe that fills it."""
    return dataclasses.field(default=default, metadata={"help": words})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A complete configuration. Each field says what it means; it is the help text of the command line, too."""

    task: str = _setting(f"A built-in task ({', '.join(BUILT_IN)}) or path/to/file.py:name.", DEFAULT_TASK)
    clients: int = _setting("How many clients to simulate, or to wait for in a deployment.", 10)
    rounds: int = _setting("Number of rounds.")
    local_steps: int = _setting("Local steps of DP-SGD in each round.")
    epsilon: float = _setting("Each client's privacy budget over all runs on its shard; inf: measure only.")
    delta: float = _setting("Delta of that budget.")
    noise_multiplier: float | None = _setting("Sigma; left open: the least that the budget allows.", None)
    clipping_norm: float = _setting("C, bound on the norm of one record's gradient.")
    clipping: str = _setting(
        f"How a record's gradient is bounded: {', '.join(CLIPPINGS)}. adaptive: C follows the median norm, from its "
        "setting on.",
        "flat",
    )
    sampling_rate: float = _setting("q, probability with which a record joins a local step.")
    batch_size: float | None = _setting(
        "Expected batch size, instead of sampling-rate: a client's q is this over its public shard size, at most 1.",
        None,
    )
    optimizer: str = _setting(f"Optimiser of the local steps: {', '.join(OPTIMIZERS)}.")
    learning_rate: float = _setting("Step size of the local steps.")
    momentum: float = _setting("Momentum of the local steps, for sgd.")
    weight_decay: float = _setting("Weight decay of the local steps, for sgd and adamw.")
    ema_decay: float = _setting("Decay of the average of the global models, which is evaluated and kept; 0: the last.")
    strategy: str = _setting(f"Flower strategy that averages: {', '.join(STRATEGIES)}.", "fedavg")
    fraction_train: float = _setting("Share of the clients that each round asks.", 1.0)
    filter: str = _setting(f"How the budget is enforced: {', '.join(FILTERS)}.", DEFAULT_FILTER)
    seed: int | None = _setting(
        "Makes a simulation repeatable; built-in tasks are simulated with 0. A deployed client refuses one.", None
    )
    device: str = _setting("auto (shards spread over the GPUs that are there), cpu, cuda or cuda:N.", "auto")
    out: str = _setting("Folder for the results.", "")
    ledger: str = _setting(
        "Ledger to share over runs, sqlite:///path or postgresql+psycopg://user@host/name; left open: a simulation "
        "keeps its own in out.",
        "",
    )
    signing_key: str = _setting(
        "Ed25519 key, in PEM, that signs grants and the ledger's heads; made where there is none. Left open: a "
        "deployment's is ~/.fedprivacy/signing.key.",
        "",
    )
    trackers: str = _setting(
        f"Who else is told of every round, separated by commas: {', '.join(TRACKERS)} (offline). Each is an extra: "
        "pip install 'fedprivacy[tensorboard]'.",
        "",
    )
    resume: str = _setting(
        "Folder of a run that was stopped: go on after its last finished round, with its own settings.", ""
    )
    node_timeout: float = _setting("Seconds to wait for enough clients.", 120.0)
    round_timeout: float = _setting("Seconds to wait for a round's replies.", 3600.0)

    @property
    def budget(self) -> PrivacyBudget:
        """Each client's privacy budget."""
        return PrivacyBudget(self.epsilon, self.delta)

    def ledger_url(self, *, deployed: bool) -> str:
        """Where charges are written: a deployment's ledger outlives every run, a simulation keeps its own."""
        if not self.ledger and deployed:
            from fedprivacy.ledger import default_url

            return default_url()
        return self.ledger or f"sqlite:///{Path(self.out) / LEDGER}"

    @property
    def signing_key_file(self) -> Path:
        """What signs in a deployment; a simulation signs only where the key is named."""
        return Path(self.signing_key) if self.signing_key else Path.home() / ".fedprivacy" / "signing.key"

    def public(self) -> dict[str, Value | None]:
        """Every setting as JSON types, under its hyphenated key; an infinite epsilon becomes None."""
        return {_key(name): None if value == math.inf else value for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of_public(cls, settings: Mapping[str, Value | None]) -> RunConfig:
        """The configuration whose `public` this is.

        Raises:
            ConfigError: another version of fedprivacy wrote it, with other settings.
        """
        others = sorted(settings.keys() ^ FIELDS.keys())
        if others:
            raise ConfigError(
                [
                    f"the settings of the run were written by a version of fedprivacy that has other ones "
                    f"({', '.join(others)}); use that version."
                ]
            )
        values = {FIELDS[key].name: value for key, value in settings.items()}
        return cls(**values | {"epsilon": math.inf if values["epsilon"] is None else values["epsilon"]})  # type: ignore[arg-type]

    def check_same(self, given: Mapping[str, Value | None]) -> None:
        """Refuse settings that are given for this run, which goes on, and are not its own.

        Args:
            given: settings by hyphenated key; None and "" mean "left open".

        Raises:
            ConfigError: lists each that is no setting, of a wrong type, or another than this run's.
        """
        problems: list[str] = []
        settings = _parse(_not_open(given), problems)
        problems += [
            f"{_key(name)} is {value}, but the run goes on with its own, {_or_open(getattr(self, name))}; leave "
            f"{_key(name)} open, or start a new run."
            for name, value in settings.items()
            if value != getattr(self, name)
        ]
        if problems:
            raise ConfigError(problems)


def resolve(given: Mapping[str, Value | None], task: Task | None = None) -> RunConfig:
    """Complete and check a configuration.

    Args:
        given: settings by hyphenated key; None and "" mean "left open".
        task: the task; None: the one that the settings name.

    Raises:
        ConfigError: lists unknown keys, wrong types, values out of range and impossible combinations, all of them.
    """
    from fedprivacy.tasks import TaskError, load_task  # torch: seconds that `--help` need not wait for

    problems: list[str] = []
    settings = _parse(_not_open(given), problems)
    problems += _batch_size_problems(settings)
    try:
        task = task or load_task(str(settings.get("task", DEFAULT_TASK)))
    except TaskError as error:
        problems.append(str(error))
    else:
        problems += _task_problems(task) + _missing_for_optimizer(task.recipe, settings)
        settings = _open_settings(task, settings) | settings
    problems += _out_of_range(settings) + _impossible(settings)
    if problems:
        raise ConfigError(problems)
    return RunConfig(**settings)  # type: ignore[arg-type]


def _key(name: str) -> str:
    return name.replace("_", "-")


FIELDS = {_key(field.name): field for field in dataclasses.fields(RunConfig)}
"""The dataclass field of every key."""


def kind_of(field: dataclasses.Field[Any]) -> str:
    """The type of a setting's value, "int", "float" or "str", whether or not it may be left open."""
    return str(field.type).split(" | ", maxsplit=1)[0]


def _not_open(given: Mapping[str, Value | None]) -> dict[str, Value]:
    return {key: value for key, value in given.items() if value is not None and value != ""}


def _or_open(value: Value | None) -> str:
    return "which was left open" if value in (None, "") else str(value)


def _parse(given: Mapping[str, Value | None], problems: list[str]) -> dict[str, Value]:
    """Settings by field name, each of its declared type."""
    settings: dict[str, Value] = {}
    for key, value in given.items():
        if key not in FIELDS:
            problems.append(f"{key} is not a setting; the settings are {', '.join(FIELDS)}.")
            continue
        kind = kind_of(FIELDS[key])
        parsed = _as_type(value, kind)
        if parsed is None:
            problems.append(f"{key} is {value!r}; give {_KIND_WORDS[kind]}.")
        else:
            settings[FIELDS[key].name] = parsed
    return settings


_KIND_WORDS = {"int": "a whole number", "float": "a number", "str": "a text"}


def _as_type(value: Value | None, kind: str) -> Value | None:
    """The value as `kind`, or None if it is not one. TOML writes whole floats as integers; nothing else converts."""
    if kind == "str":
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "float":
        return float(value) if not math.isnan(value) else None
    return value if isinstance(value, int) else None


def _task_problems(task: Task) -> list[str]:
    from fedprivacy.gradients import UnsupportedModelError, check_frozen, check_model

    problems = []
    try:
        check_model(model := task.model())
        check_frozen(model, task.model())
    except UnsupportedModelError as error:
        problems.append(f"task {task.name}: {error}")
    if not task.shard_sizes_public and not task.nominal_shard_size:
        problems.append(
            f"task {task.name}: shard sizes are private, so the divisor of the noisy sum needs a public guess; "
            "set nominal_shard_size."
        )
    return problems


def _open_settings(task: Task, given: Mapping[str, Value]) -> dict[str, Value]:
    """The task's recipe. A noise multiplier that comes without a budget asks to measure, not to enforce.

    Momentum and weight decay are the recipe's for its own optimiser; another one has none until they are given.
    """
    recipe = dataclasses.asdict(task.recipe)
    if "noise_multiplier" in given and "epsilon" not in given:
        recipe["epsilon"] = math.inf
    if "optimizer" in given and given["optimizer"] != task.recipe.optimizer:
        recipe |= {"momentum": 0.0, "weight_decay": 0.0}
    return recipe


def _missing_for_optimizer(recipe: Recipe, given: Mapping[str, Value]) -> list[str]:
    """What no recipe knows for another optimiser than its own: with a wrong step size a budget is spent on nothing."""
    optimizer = given.get("optimizer", recipe.optimizer)
    if optimizer == recipe.optimizer or optimizer not in OPTIMIZERS:
        return []
    needed = ("learning_rate", "weight_decay") if optimizer == "adamw" else ("learning_rate",)
    return [
        f"optimizer is '{optimizer}' and {_key(name)} is open, but the task's recipe is for {recipe.optimizer}; "
        f"give a {_key(name)}."
        for name in needed
        if name not in given
    ]


_WHOLE = (1, 10**9)
_POSITIVE = (5e-324, 1.7e308)

LARGEST_LEARNING_RATE = 1e30
"""Float32 goes to 3e38: a larger one could not be multiplied with."""

LARGEST_WEIGHT_DECAY = 1e3
_RANGES: dict[str, tuple[float, float]] = {
    "clients": _WHOLE,
    "rounds": _WHOLE,
    "local_steps": _WHOLE,
    "epsilon": (5e-324, math.inf),
    "delta": (1e-300, 0.999),
    "noise_multiplier": (0.05, 1e4),
    "clipping_norm": CLIPPING_NORMS,
    "sampling_rate": (1e-9, 1.0),
    "batch_size": (1e-6, 1e9),
    "learning_rate": (5e-324, LARGEST_LEARNING_RATE),
    "momentum": (0.0, 0.9999),
    "weight_decay": (0.0, LARGEST_WEIGHT_DECAY),
    "ema_decay": (0.0, 0.9999),
    "fraction_train": (5e-324, 1.0),
    "seed": (0, 2**63 - 1),
    "node_timeout": (0.0, 1e9),
    "round_timeout": _POSITIVE,
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "strategy": STRATEGIES,
    "clipping": CLIPPINGS,
    "optimizer": OPTIMIZERS,
    "filter": tuple(FILTERS),
}


_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def _out_of_range(settings: Mapping[str, Value]) -> list[str]:
    """Every value that is of the right type and still cannot be."""
    problems = [
        f"{_key(name)} is {value}; choose a number from {low:g} to {high:g}."
        for name, (low, high) in _RANGES.items()
        if isinstance(value := settings.get(name), int | float) and not low <= value <= high
    ]
    problems += [
        f"{_key(name)} is '{settings[name]}'; choose one of {', '.join(choices)}."
        for name, choices in _CHOICES.items()
        if name in settings and settings[name] not in choices
    ]
    if not is_device(str(settings.get("device", "auto"))):
        problems.append(f"device is '{settings['device']}'; choose auto, cpu, cuda or cuda:N.")
    return problems


def _impossible(settings: Mapping[str, Value]) -> list[str]:
    """Values that do not go together, or name what there is not."""
    problems = []
    if settings.get("epsilon") == math.inf and "noise_multiplier" not in settings:
        problems.append("epsilon is inf, which asks for no noise at all; give a noise-multiplier, or a finite epsilon.")
    if settings.get("optimizer") in OPTIMIZERS:
        problems += _optimizer_problems(settings)
    if "ledger" in settings:
        problems += _ledger_problems(str(settings["ledger"]))
    problems += [
        f"trackers names '{name}'; choose from {', '.join(TRACKERS)}, separated by commas."
        for name in names_in(str(settings.get("trackers", "")))
        if name not in TRACKERS
    ]
    return problems


def _batch_size_problems(given: Mapping[str, Value]) -> list[str]:
    """What a batch size does not go with."""
    if "batch_size" not in given:
        return []
    problems = []
    if "sampling_rate" in given:
        problems.append("batch-size and sampling-rate both say how many records join a step; give one of them.")
    if "noise_multiplier" not in given:
        problems.append(
            f"batch-size is {given['batch_size']} and noise-multiplier is open, but clients with different sampling "
            "rates need different noise; give a noise-multiplier ('fedprivacy sigma' finds one for the largest rate)."
        )
    return problems


def _optimizer_problems(settings: Mapping[str, Value]) -> list[str]:
    from fedprivacy.training.optimizers import build_optimizer

    momentum, weight_decay = float(settings.get("momentum", 0.0)), float(settings.get("weight_decay", 0.0))
    try:
        build_optimizer(str(settings["optimizer"]), 1.0, momentum=momentum, weight_decay=weight_decay)
    except ValueError as error:
        return [str(error)]
    return []


def is_device(name: str) -> bool:
    """Whether a device can have this name: auto, cpu, cuda or cuda:N."""
    return _DEVICE.fullmatch(name) is not None


def names_in(setting: str) -> list[str]:
    """Names that are separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in setting.split(",") if name.strip()))


def _ledger_problems(url: str) -> list[str]:
    from fedprivacy.ledger import LedgerError, database_file

    try:
        database_file(url)
    except LedgerError as error:
        return [str(error)]
    return []
