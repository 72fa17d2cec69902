"""The configuration of a run: one dataclass, one table of defaults, every problem reported at once.

A key is spelt the same way in `flwr run --run-config`, in `[tool.flwr.app.config]` and as a command-line option:
`noise_multiplier` here is `noise-multiplier` there. An empty string leaves a key open; then the task's recipe decides,
or the strategy's entry, or the default below.

What a setting may choose from is stated where it is implemented (`OPTIMIZERS`, `CLIPPINGS`, `FILTERS`, `TRACKERS`,
`BUILT_IN`, `STRATEGIES`) and only read here. Those modules import neither torch nor Flower: every `--help` reads them.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedprivacy._support.settings import ConfigError, Value, fields_of, key_of, not_allowed, parse, setting
from fedprivacy.accounting import DEFAULT_FILTER, FILTERS
from fedprivacy.accounting.filters import FILTER_OF_MIXTURES
from fedprivacy.participation import COHORTS, availability, speeds
from fedprivacy.runs.client_terms import EPSILONS, NOISE_MULTIPLIERS, SAMPLING_RATES, TABLE_FORMS
from fedprivacy.runs.settings import combinations
from fedprivacy.runs.settings.algorithms import keeping
from fedprivacy.runs.settings.strategies import DEFAULT_STRATEGY, STRATEGIES, default_words
from fedprivacy.tasks.augmentation import LARGEST_MULTIPLICITY
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK
from fedprivacy.trackers import TRACKERS
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.training.algorithms import (
    ALGORITHM_SETTINGS,
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    LARGEST_PULL,
    Algorithm,
    LocalTraining,
    arguments_of,
)
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE, LARGEST_WEIGHT_DECAY, OPTIMIZERS
from fedprivacy.training.schedules import LEARNING_RATE_SCHEDULES
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import CLIPPING_NORMS
from fedprivacy.values.schedule import Schedule

if TYPE_CHECKING:
    from fedprivacy.tasks import Task

__all__ = [
    "CONFIG",
    "FIELDS",
    "LEDGER",
    "OF_ASKING",
    "OF_TRAINING",
    "RUNS",
    "ConfigError",
    "Engine",
    "RunConfig",
    "Value",
    "of_simulation",
    "resolve",
    "words_of",
]

RUNS = "runs"
"""Where simulations leave their folders."""

LEDGER = "ledger.db"
"""What a simulation names its own ledger, in its folder."""

USUAL_SPEND = 0.1
"""What part of a budget's epsilon a task's own question takes, and how much of it other questions do."""

CONFIG = "config.json"
"""What a run names its configuration, in its folder: every setting, and the noise that was used."""

DEFAULT_SEED = 0
"""Of simulations on bundled records."""

_WHOLE = (1, 10**9)
_LEAST = 5e-324
"""The smallest positive number."""

_KEPT = (0.0, 0.9999)

USER_LEVEL_CLIPPINGS = ("fixed", "adaptive")
"""How the bound on a client's whole update is chosen."""

WEIGHTINGS = ("size", "inverse-variance")
"""How much a client's update counts in the average."""

_OF_BUDGETS = {"noise_multiplier", "question_spend", "spend"}
"""What a run without privacy has no use for."""


class Engine(enum.StrEnum):
    """Where simulated clients run.

    `IN_PROCESS`: one after another in this process; the fastest for small models. `RAY`: in Ray's worker processes,
    several at once, on GPUs and clusters.
    """

    IN_PROCESS = "in-process"
    RAY = "ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A complete configuration. Each field says what it means; it is the help text of the command line, too."""

    task: str = setting(f"A built-in task ({', '.join(BUILT_IN)}) or path/to/file.py:name.", DEFAULT_TASK)
    clients: int = setting("How many clients to simulate, or to wait for in a deployment.", bounds=_WHOLE)
    rounds: int = setting("Number of rounds.", bounds=_WHOLE)
    local_steps: int = setting("Local steps of DP-SGD in each round.", bounds=_WHOLE)
    local_evaluation: int = setting(
        "Every so many rounds clients also release noisy means of what their own records score under their model, "
        "charged as one more local step; 0: never.",
        0,
        bounds=(0, 10**9),
    )
    epsilon: float = setting(
        "Each client's privacy budget over all runs on its shard; inf: measure only.", bounds=EPSILONS
    )
    delta: float = setting("Delta of that budget.", bounds=(1e-300, 0.999))
    spend: float | None = setting(
        "How much of that budget's epsilon this run may take of each client; left open: all that is left.",
        None,
        bounds=(_LEAST, 1e6),
    )
    question_spend: float | None = setting(
        "How much of that budget's epsilon the task's own question may take (Task.standardise), which is asked once, "
        "before the first round; left open: a tenth of the budget.",
        None,
        bounds=(_LEAST, 1e6),
    )
    privacy: bool = setting(
        "Off: the baseline, the same run without clipping and noise, which protects nobody. Simulations only.", True
    )
    noise_multiplier: float | None = setting(
        "Sigma; left open: the least that the budget allows.", None, bounds=NOISE_MULTIPLIERS
    )
    clipping_norm: float = setting("C, bound on the norm of one record's gradient.", bounds=CLIPPING_NORMS)
    clipping: str = setting(
        f"How a record's gradient is bounded: {', '.join(CLIPPINGS)}. adaptive: C follows the median norm, from its "
        "setting on.",
        "flat",
        choices=CLIPPINGS,
    )
    sampling_rate: float = setting("q, probability with which a record joins a local step.", bounds=SAMPLING_RATES)
    batch_size: float | None = setting(
        "Expected batch size, instead of sampling-rate: a client's q is this over its public shard size, at most 1. "
        "With noise-multiplier left open, each client has the least noise for its own q.",
        None,
        bounds=(1e-6, 1e9),
    )
    client_terms: str = setting(
        f"What some clients have of their own: {TABLE_FORMS}; in Python, or a mapping. What is open is the "
        "run's; noise that is open in both is the least that the client's own budget and rate allow.",
        "",
    )
    optimizer: str = setting(f"Optimiser of the local steps: {', '.join(OPTIMIZERS)}.", choices=OPTIMIZERS)
    learning_rate: float = setting("Step size of the local steps.", bounds=(_LEAST, LARGEST_LEARNING_RATE))
    momentum: float = setting("Momentum of the local steps, for sgd.", bounds=_KEPT)
    weight_decay: float = setting(
        "Weight decay of the local steps, for sgd and adamw.", bounds=(0.0, LARGEST_WEIGHT_DECAY)
    )
    ema_decay: float = setting(
        "Decay of the average of the global models, which is evaluated and kept; 0: the last.", bounds=_KEPT
    )
    learning_rate_schedule: str = setting(
        f"How the step size of the local steps changes over the rounds: {', '.join(LEARNING_RATE_SCHEDULES)}.",
        "constant",
        choices=LEARNING_RATE_SCHEDULES,
    )
    algorithm: str = setting(
        f"What clients do with a round's local steps: {', '.join(ALGORITHMS)}. fedavg: all train the global model; "
        "the others keep something of their own.",
        DEFAULT_ALGORITHM,
        choices=ALGORITHMS,
    )
    pull: float | None = setting(
        "Lambda: how much mr-mtl and ditto pull a client's own model to the global one; 0: not at all. Left open: 1.",
        None,
        bounds=(0.0, LARGEST_PULL),
    )
    personal_steps: int | None = setting(
        "How many of a round's local steps ditto and fedrep spend on what is a client's own. Left open: half.",
        None,
        bounds=_WHOLE,
    )
    fine_tuning_rounds: int = setting(
        "In so many last rounds every client trains a model of its own, from the global one, which stays as it is.",
        0,
        bounds=(0, 10**9),
    )
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
        "Simulated: every so many rounds, and after the last one, each client's model is measured on records of its "
        "own that the task holds out and declares public (Task.held_out); 0: after the last one alone.",
        0,
        bounds=(0, 10**9),
    )
    strategy: str = setting(
        f"Flower strategy that averages: {', '.join(STRATEGIES)}; or path/to/file.py:name of one of your own.",
        DEFAULT_STRATEGY,
        choices=STRATEGIES,
        or_source=True,
    )
    server_learning_rate: float | None = setting(
        f"Step size of a strategy that takes steps of its own. Left open: {default_words('server_learning_rate')}.",
        None,
        bounds=(_LEAST, LARGEST_LEARNING_RATE),
    )
    server_momentum: float | None = setting(
        f"Momentum of its steps. Left open: {default_words('server_momentum')}.", None, bounds=_KEPT
    )
    proximal_mu: float | None = setting(
        "How much a strategy pulls local steps back towards the global model. Left open: "
        f"{default_words('proximal_mu')}.",
        None,
        bounds=(0.0, LARGEST_LEARNING_RATE),
    )
    weighting: str = setting(
        f"How much an update counts in the average: {', '.join(WEIGHTINGS)}. size: as its client's public shard size, "
        "all alike where sizes are private. inverse-variance: the less noise it holds, the more.",
        WEIGHTINGS[0],
        choices=WEIGHTINGS,
    )
    fraction_train: float = setting(
        "Share of the clients that each round asks; with user-level noise, the probability with which each joins.",
        1.0,
        bounds=(_LEAST, 1.0),
    )
    cohort_size: int | None = setting(
        "How many clients' updates a round averages, sampled anew in each; left open: fraction-train of them.",
        None,
        bounds=_WHOLE,
    )
    cohort_sampling: str = setting(
        "How they are sampled. fixed: so many, all sets alike; poisson: each client by itself, so many on average.",
        "fixed",
        choices=COHORTS,
    )
    over_selection: float = setting(
        "Simulated: a round asks so many times cohort-size clients, and averages the first cohort-size answers.",
        1.0,
        bounds=(1.0, 100.0),
    )
    drop_out: float = setting(
        "Simulated: probability with which a client that is asked goes away without an answer. It stays charged.",
        0.0,
        bounds=(0.0, 0.99),
    )
    speeds: str = setting(
        f"Simulated: seconds that a local step takes each client: {speeds.FORMS}. Left open: one, where the run has a "
        "clock (over-selection, deadline, availability or buffer-size).",
        "",
    )
    deadline: float | None = setting(
        "Simulated: seconds after which a round is over; what comes later is charged, and not averaged.",
        None,
        bounds=(_LEAST, 1e9),
    )
    availability: str = setting(
        f"Simulated: when each client can be asked: {availability.FORMS}, in seconds. Left open: always.", ""
    )
    concurrency: int | None = setting(
        "Simulated: how many clients train at any moment in asynchronous rounds (FedBuff), which need buffer-size.",
        None,
        bounds=_WHOLE,
    )
    buffer_size: int | None = setting(
        "Simulated: how many updates make a step of the server in asynchronous rounds, where whoever is done is "
        "replaced at once, and a stale update counts less. Left open, with concurrency: rounds are synchronous.",
        None,
        bounds=_WHOLE,
    )
    user_level_noise_multiplier: float | None = setting(
        "Noise that the server adds to the sum of the clients' clipped updates, in clipping norms, so that the global "
        "models protect each client as a whole (user-level central DP). Left open: the least that user-level-epsilon "
        "allows; with neither of them, there is none.",
        None,
        bounds=(0.05, 1e4),
    )
    user_level_epsilon: float | None = setting(
        "Each client's user-level budget, for this run's global models; the run ends when the next round does not fit. "
        "It is never added to epsilon, which is for a record. Left open: measure only.",
        None,
        bounds=(_LEAST, 1e6),
    )
    user_level_delta: float = setting("Delta of user-level-epsilon.", 1e-5, bounds=(1e-300, 0.999))
    user_level_clipping_norm: float | None = setting(
        "Bound on the norm of one client's whole update. Left open: 1; where user-level-clipping is adaptive, which "
        "starts there, 0.1.",
        None,
        bounds=CLIPPING_NORMS,
    )
    user_level_clipping: str = setting(
        f"How that bound is chosen: {', '.join(USER_LEVEL_CLIPPINGS)}. adaptive: it follows a quantile of the updates' "
        "norms.",
        USER_LEVEL_CLIPPINGS[0],
        choices=USER_LEVEL_CLIPPINGS,
    )
    user_level_quantile: float | None = setting(
        "Share of the updates that adaptive user-level clipping leaves whole. Left open: 0.5.", None, bounds=(0.0, 1.0)
    )
    filter: str = setting(
        f"How the budget is enforced: {', '.join(FILTERS)}. Left open: as on the ledger; a new dataset's is "
        f"{DEFAULT_FILTER}, or {FILTER_OF_MIXTURES} where there is a spend.",
        "",
        choices=FILTERS,
    )
    seed: int | None = setting(
        "Makes a simulation repeatable; built-in tasks are simulated with 0. A deployed client refuses one.",
        None,
        bounds=(0, 2**63 - 1),
    )
    device: str = setting("auto (shards spread over the GPUs that are there), cpu, cuda or cuda:N.", "auto")
    out: str = setting("Folder for the results.", "")
    ledger: str = setting(
        "Ledger to share over runs: an SQLite file, or postgresql+psycopg://user@host/name; left open: a simulation "
        "keeps its own in out.",
        "",
    )
    signing_key: str = setting(
        "Ed25519 key, in PEM, that signs grants and the ledger's heads; made where there is none. Left open: a "
        "deployment's is ~/.fedprivacy/signing.key.",
        "",
    )
    trackers: str = setting(
        f"Who else is told of every round, separated by commas: {', '.join(TRACKERS)} (offline). Each is an extra: "
        "pip install 'fedprivacy[tensorboard]'.",
        "",
    )
    questions: str = setting(
        "Questions to ask the clients instead of training, as 'fedprivacy ask' takes them: of a deployment's run.", ""
    )
    resume: str = setting(
        "Folder of a run that was stopped: go on after its last finished round, with its own settings.", ""
    )
    node_timeout: float = setting("Seconds to wait for enough clients.", 120.0, bounds=(0.0, 1e9))
    round_timeout: float = setting("Seconds to wait for a round's replies.", 3600.0, bounds=(_LEAST, 1e9))

    @property
    def user_level(self) -> bool:
        """Whether the server clips and noises the clients' updates, so that the models protect each client."""
        return self.user_level_noise_multiplier is not None or self.user_level_epsilon is not None

    def algorithm_in(self, round: int) -> Algorithm:
        """What clients do in a round: the algorithm, and in the last `fine_tuning_rounds` local training."""
        if round > self.rounds - self.fine_tuning_rounds:
            return LocalTraining()
        given = {name: getattr(self, name) for name in ALGORITHM_SETTINGS}
        taken = arguments_of(self.algorithm)
        return ALGORITHMS[self.algorithm](**{k: v for k, v in given.items() if v is not None and k in taken})

    @property
    def keeps(self) -> bool:
        """Whether clients keep something of their own from round to round."""
        return bool(self.keeping)

    @property
    def keeping(self) -> str:
        """Which setting has them do so, for people; empty: none."""
        return keeping(self.algorithm, self.fine_tuning_rounds)

    def learning_rate_in(self, round: int) -> float:
        """Step size of the local steps in a round, from 1."""
        return self.learning_rate * LEARNING_RATE_SCHEDULES[self.learning_rate_schedule](round, self.rounds)

    @property
    def budget(self) -> PrivacyBudget:
        """Each client's privacy budget."""
        return PrivacyBudget(self.epsilon, self.delta)

    @property
    def schedule(self) -> Schedule:
        """What each round is charged."""
        return Schedule(self.local_steps, self.local_evaluation)

    @property
    def most_spent(self) -> float:
        """How much of the budget's epsilon this run may take; infinite: all that is left."""
        return math.inf if self.spend is None else self.spend

    def allowance(self, known: Allowance | None = None) -> Allowance:
        """What this run asks for on a dataset: its budget, by its filter or, left open, by the known one's."""
        new = DEFAULT_FILTER if self.spend is None and self.question_spend is None else FILTER_OF_MIXTURES
        return Allowance(self.budget, self.filter or (known.filter if known else new))

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
        return {key_of(name): None if value == math.inf else value for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of_public(cls, settings: Mapping[str, Value | None]) -> RunConfig:
        """The configuration whose `public` this is.

        Raises:
            ConfigError: another version of fedprivacy wrote it, with other settings.
        """
        others = sorted(settings.keys() ^ FIELDS.keys())
        if others:
            written = "the settings of the run were written by a version of fedprivacy that has other ones"
            raise ConfigError([f"{written} ({', '.join(others)}); use that version."])
        values = {FIELDS[key].name: value for key, value in settings.items()}
        return cls(**values | {"epsilon": math.inf if values["epsilon"] is None else values["epsilon"]})  # type: ignore[arg-type]

    def check_same(self, given: Mapping[str, Value | None]) -> None:
        """Refuse settings that are given for this run, which goes on, and are not its own; None and "" are left open.

        Raises:
            ConfigError: lists each that is no setting, of a wrong type, or another than this run's.
        """
        settings, wrong = _parsed(given)
        problems = [*wrong.values()] + [
            f"{key_of(name)} is {value}, but the run goes on with its own, {_or_open(getattr(self, name))}; leave "
            f"{key_of(name)} open, or start a new run."
            for name, value in settings.items()
            if _named(name, value) != _named(name, getattr(self, name))
        ]
        if problems:
            raise ConfigError(problems)


FIELDS = fields_of(RunConfig)
"""The dataclass field of every key."""

OF_TRAINING = tuple(key for key in FIELDS if key != "questions")
"""Settings of a run that trains."""

OF_ASKING = (
    *("task", "clients", "epsilon", "delta", "spend", "noise-multiplier", "client-terms", "filter", "seed", "out"),
    *("ledger", "signing-key", "node-timeout", "round-timeout"),
)
"""Settings of a run that asks, besides its questions: those that are not for training alone."""

_NO_PROFILE = (
    "profile is not a setting: how long a client's private work takes may say something of its records, so that only "
    "'fedprivacy simulate --profile' and fp.simulate(..., profile=True) write a profile; leave it out here."
)

_DEFAULTS = {f.name: f.default for f in FIELDS.values() if f.default not in (dataclasses.MISSING, None, "")}


def of_simulation(given: Mapping[str, Value | None], task: Task | None = None) -> dict[str, Value]:
    """Settings of a simulation, without those that are left open by None.

    Runs on bundled, public records are repeatable; a user's own records get noise that nobody can repeat.
    """
    named = {key: value for key, value in given.items() if value is not None}
    public = task is None and "resume" not in named and named.get("task", DEFAULT_TASK) in BUILT_IN
    return ({"seed": DEFAULT_SEED} if public else {}) | named


def words_of(field: dataclasses.Field[Value | None]) -> str:
    """What a setting means, and what it is where it is left open."""
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
    from fedprivacy.tasks.loader import TaskError, agreed, word_of  # torch: seconds that `--help` need not wait for

    settings, wrong = _parsed(given)
    together = combinations.with_batch_size(settings)
    try:
        task = agreed(cast(str | None, settings.get("task")), task)
    except TaskError as error:
        together.append(str(error))
        task = None
    else:
        together += combinations.with_task(task) + combinations.with_recipe(task.recipe, settings, wrong)
        settings = _of_recipe(task, settings) | {"task": word_of(task)} | settings
    strategy = STRATEGIES.get(str(settings.get("strategy", DEFAULT_STRATEGY)))  # None: one of the user's own
    settings = _DEFAULTS | (dict(strategy.defaults) if strategy else {}) | settings
    if not settings["privacy"]:
        settings = {name: value for name, value in settings.items() if name not in _OF_BUDGETS}
        settings["epsilon"] = math.inf  # of the private run beside it: here nothing would keep them
    wrong |= not_allowed(FIELDS, settings)
    together += combinations.with_question(task, settings, wrong) if task else []
    if getattr(task, "standardise", None) is not None and settings["privacy"] and "epsilon" not in wrong:
        settings.setdefault("question_spend", USUAL_SPEND * min(float(settings["epsilon"]), 10.0))
    problems = [*wrong.values(), *together, *combinations.with_one_another(settings, wrong)]
    if problems:
        raise ConfigError(problems)
    return RunConfig(**{name: _named(name, value) for name, value in settings.items()})  # type: ignore[arg-type]


def _parsed(given: Mapping[str, Value | None]) -> tuple[dict[str, Value], dict[str, str]]:
    """What `parse` gives; where a profile is asked for as a setting, with the reason why it is none."""
    settings, wrong = parse(FIELDS, given)
    return settings, wrong | ({"profile": _NO_PROFILE} if "profile" in wrong else {})


def _named(name: str, value: Value) -> Value:
    """A setting's value; a ledger's, which may be named by its file, as its URL."""
    if name != "ledger" or not value:
        return value
    from fedprivacy.ledger import ledger_url

    return ledger_url(str(value))


def _or_open(value: Value | None) -> str:
    return "which was left open" if value in (None, "") else str(value)


def _of_recipe(task: Task, given: Mapping[str, Value]) -> dict[str, Value]:
    """The task's recipe. A noise multiplier that comes without a budget asks to measure, not to enforce.

    Momentum and weight decay are the recipe's for its own optimiser; another one has none until they are given.
    """
    recipe = dataclasses.asdict(task.recipe)
    if "noise_multiplier" in given and not {"epsilon", "spend"} & given.keys():
        recipe["epsilon"] = math.inf
    if "optimizer" in given and given["optimizer"] != task.recipe.optimizer:
        recipe |= {"momentum": 0.0, "weight_decay": 0.0}
    return recipe
