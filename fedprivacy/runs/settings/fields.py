"""The settings of a run, in the groups in which people read them: each with its words, type, bounds and default.

`prohibitions` says which do not go together. What a setting may choose from is stated where it is implemented
(`OPTIMIZERS`, `CLIPPINGS`, `FILTERS`, `TRACKERS`, `BUILT_IN`, `STRATEGIES`). None of those modules imports torch or
Flower: every `--help` reads them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from fedprivacy._support.settings import LEAST, WHOLE, is_printable, setting
from fedprivacy.accounting import DEFAULT_FILTER, FILTERS
from fedprivacy.accounting.filters import FILTER_OF_MIXTURES
from fedprivacy.participation import COHORTS
from fedprivacy.participation.timing import AVAILABILITY_FORMS, SPEED_FORMS, check_availability, check_speeds
from fedprivacy.runs.settings import client_terms
from fedprivacy.runs.settings.client_terms import EPSILONS, NOISE_MULTIPLIERS, SAMPLING_RATES, TABLE_FORMS
from fedprivacy.runs.settings.device import AUTOCASTS, check_device
from fedprivacy.runs.settings.strategies import DEFAULT_STRATEGY, STRATEGIES
from fedprivacy.tasks.augmentation import LARGEST_MULTIPLICITY
from fedprivacy.tasks.identity import BUILT_IN, DEFAULT_TASK
from fedprivacy.trackers import TRACKERS, check_trackers
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.training.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from fedprivacy.training.algorithms.algorithm import LARGEST_PULL
from fedprivacy.training.optimizers import (
    LARGEST_LEARNING_RATE,
    LARGEST_WEIGHT_DECAY,
    LEARNING_RATE_SCHEDULES,
    MOMENTA,
    OPTIMIZERS,
)
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import CLIPPING_NORMS
from fedprivacy.values.series import Schedule

LEDGER = "ledger.db"
"""Name of a simulation's own ledger in its folder."""

_WEIGHTINGS = ("size", "inverse-variance")
"""Rules for the weight of a client's update in the average."""

USER_LEVEL_CLIPPINGS = ("fixed", "adaptive")
"""Ways to choose the bound on a client's whole update."""


def _default_words(setting: str) -> str:
    """The strategies that take a setting, and what it is for each where it is left open, for people."""
    taking = {name: known.defaults[setting] for name, known in STRATEGIES.items() if setting in known.defaults}
    return ", ".join(f"{value:g} for {name}" for name, value in taking.items())


def _check_ledger(named: str) -> None:
    from fedprivacy.ledger import ledger_url  # SQLAlchemy: half a second that `--help` need not wait for

    ledger_url(named)


def _check_name(named: str) -> None:
    if not re.fullmatch(r"[\w][\w.+-]*", named):
        raise ValueError(f"name is '{named}'; give a folder's name of letters, digits and - . + _.")


def _check_words(key: str, words: str) -> None:
    if not is_printable(words):
        raise ValueError(f"{key} holds characters that cannot be printed; take them out.")


class SettingsGroup:
    """A frozen dataclass of settings that belong together; each field is made by `setting`.

    Attributes:
        question: what the settings answer: the title of the group in a command's help.
        basic: hyphenated keys of those that a beginner needs; a help shows them first.
    """

    question: ClassVar[str]
    basic: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, question: str = "", basic: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        cls.question, cls.basic = question, basic


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


@dataclass(frozen=True, kw_only=True)
class PrivacySettings(
    SettingsGroup,
    question="How private?",
    basic=("epsilon", "delta", "noise-multiplier", "privacy", "clipping-norm", "sampling-rate", "batch-size"),
):
    """Budget, noise, clipping and sampling: of all clients, and of some clients' own."""

    epsilon: float = setting(
        "Each client's privacy budget over all runs on its shard; inf: measure only.", bounds=EPSILONS
    )
    delta: float = setting("Delta of that budget.", bounds=(1e-300, 0.999))
    spend: float | None = setting(
        "How much of that budget's epsilon this run may take of each client; left open: all that is left.",
        None,
        bounds=(LEAST, 1e6),
    )
    question_spend: float | None = setting(
        "How much of that budget's epsilon the task's own question may take (Task.standardise), which is asked once, "
        "before the first round; left open: a tenth of the budget.",
        None,
        bounds=(LEAST, 1e6),
    )
    privacy: bool = setting(
        "Off: the baseline, the same run without clipping and noise, which protects nobody. Simulations only.", True
    )
    noise_multiplier: float | None = setting(
        "Sigma; left open: the least that the budget allows. Given without epsilon, the run has no budget.",
        None,
        bounds=NOISE_MULTIPLIERS,
    )
    clipping_norm: float = setting("C, bound on the norm of one record's gradient.", bounds=CLIPPING_NORMS)
    clipping: str = setting(
        f"How a record's gradient is bounded: {', '.join(CLIPPINGS)}. adaptive: C follows the median norm, from its "
        "setting on.",
        "flat",
        choices=CLIPPINGS,
    )
    sampling_rate: float = setting("q, probability that a record joins a local step.", bounds=SAMPLING_RATES)
    batch_size: float | None = setting(
        "Expected batch size, instead of sampling-rate: a client's q is this over its public shard size, at most 1. "
        "With noise-multiplier left open, each client has the least noise for its own q.",
        None,
        bounds=(1e-6, 1e9),
    )
    client_terms: str = setting(
        f"Settings of single clients: {TABLE_FORMS}; in Python, or a mapping. A setting that is left open is the "
        "run's; noise that is open in both is the least that the client's own budget and rate allow.",
        "",
        check=client_terms.check_form,
    )

    @property
    def budget(self) -> PrivacyBudget:
        """Each client's privacy budget."""
        return PrivacyBudget(self.epsilon, self.delta)

    @property
    def most_spent(self) -> float:
        """Maximum epsilon that this run may take of the budget; infinite: all that is left."""
        return math.inf if self.spend is None else self.spend


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(SettingsGroup, question="How does a client train?", basic=("learning-rate",)):
    """Optimiser by which local steps move a model along released gradients, and the average of models that is kept."""

    optimizer: str = setting(f"Optimiser of the local steps: {', '.join(OPTIMIZERS)}.", choices=OPTIMIZERS)
    learning_rate: float = setting("Step size of the local steps.", bounds=(LEAST, LARGEST_LEARNING_RATE))
    momentum: float = setting("Momentum of the local steps, for sgd.", bounds=MOMENTA)
    weight_decay: float = setting(
        "Weight decay of the local steps, for sgd and adamw.", bounds=(0.0, LARGEST_WEIGHT_DECAY)
    )
    ema_decay: float = setting(
        "Decay of the average of the global models, which is evaluated and kept; 0: the last.", bounds=MOMENTA
    )
    learning_rate_schedule: str = setting(
        f"How the step size of the local steps changes over the rounds: {', '.join(LEARNING_RATE_SCHEDULES)}.",
        "constant",
        choices=LEARNING_RATE_SCHEDULES,
    )


@dataclass(frozen=True, kw_only=True)
class AlgorithmSettings(SettingsGroup, question="Which algorithm?", basic=("algorithm", "pull")):
    """Algorithm of the clients: their use of a round's local steps, and what they keep of their own."""

    algorithm: str = setting(
        f"Algorithm of a round's local steps: {', '.join(ALGORITHMS)}. fedavg: all train the global model; "
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
        bounds=WHOLE,
    )
    fine_tuning_rounds: int = setting(
        "In so many last rounds every client trains a model of its own, from the global one, which stays as it is.",
        0,
        bounds=(0, 10**9),
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


@dataclass(frozen=True, kw_only=True)
class StrategySettings(SettingsGroup, question="How does the server average?", basic=("strategy",)):
    """Strategy of the server, which makes the next global model of the clients' updates."""

    strategy: str = setting(
        f"Flower strategy that averages: {', '.join(STRATEGIES)}; or path/to/file.py:name of one of your own.",
        DEFAULT_STRATEGY,
        choices=STRATEGIES,
        or_source=True,
    )
    server_learning_rate: float | None = setting(
        f"Step size of a strategy that takes steps of its own. Left open: {_default_words('server_learning_rate')}.",
        None,
        bounds=(LEAST, LARGEST_LEARNING_RATE),
    )
    server_momentum: float | None = setting(
        f"Momentum of its steps. Left open: {_default_words('server_momentum')}.", None, bounds=MOMENTA
    )
    proximal_mu: float | None = setting(
        "How much a strategy pulls local steps back towards the global model. Left open: "
        f"{_default_words('proximal_mu')}.",
        None,
        bounds=(0.0, LARGEST_LEARNING_RATE),
    )
    weighting: str = setting(
        f"How much an update counts in the average: {', '.join(_WEIGHTINGS)}. size: as its client's public shard size, "
        "all alike where sizes are private. inverse-variance: the less noise it holds, the more.",
        _WEIGHTINGS[0],
        choices=_WEIGHTINGS,
    )


@dataclass(frozen=True, kw_only=True)
class ParticipationSettings(SettingsGroup, question="Who takes part?", basic=("fraction-train",)):
    """Selection of the clients of a round: how many are asked, and which of them answer in time."""

    fraction_train: float = setting(
        "Share of the clients that each round asks; with user-level noise, the probability that each joins.",
        1.0,
        bounds=(LEAST, 1.0),
    )
    cohort_size: int | None = setting(
        "Number of clients' updates that a round averages, sampled in each round; left open: fraction-train of them.",
        None,
        bounds=WHOLE,
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
        "Simulated: probability that a client that is asked goes away without an answer. It stays charged.",
        0.0,
        bounds=(0.0, 0.99),
    )
    speeds: str = setting(
        f"Simulated: seconds that a local step takes each client: {SPEED_FORMS}. Left open: one, where the run has a "
        "clock (over-selection, deadline or availability).",
        "",
        check=check_speeds,
    )
    deadline: float | None = setting(
        "Simulated: seconds after which a round is over; what comes later is charged, and not averaged.",
        None,
        bounds=(LEAST, 1e9),
    )
    availability: str = setting(
        f"Simulated: when each client can be asked: {AVAILABILITY_FORMS}, in seconds. Left open: always.",
        "",
        check=check_availability,
    )


@dataclass(frozen=True, kw_only=True)
class UserLevelSettings(SettingsGroup, question="How private is a client as a whole?"):
    """Noise, budget and clipping of whole clients' updates."""

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
        bounds=(LEAST, 1e6),
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

    @property
    def user_level(self) -> bool:
        """Return whether the server clips and noises the clients' updates, so that the models protect each client."""
        return self.user_level_noise_multiplier is not None or self.user_level_epsilon is not None


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings(
    SettingsGroup, question="Where does it run, and what is kept?", basic=("seed", "device", "out", "resume")
):
    """The books, the randomness, the device, the files and how long to wait for clients."""

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
    device: str = setting(
        "auto (shards spread over the GPUs that are there), cpu, cuda or cuda:N.", "auto", check=check_device
    )
    autocast: str = setting(
        "Type of activations in private training: float32, or bfloat16, which is faster on GPUs. A record's gradient "
        "is clipped after it is rounded, so the guarantee is the same. A deployed client sets its own.",
        "float32",
        choices=AUTOCASTS,
    )
    out: str = setting("Folder for the results.", "")
    name: str = setting("Beginning of the name of the run's folder. Left open: the task's.", "", check=_check_name)
    tags: str = setting(
        "Words to find the run by, separated by commas: 'fedprivacy runs --tag'.",
        "",
        check=partial(_check_words, "tags"),
    )
    note: str = setting("The purpose of the run, in words for people.", "", check=partial(_check_words, "note"))
    ledger: str = setting(
        "Ledger to share over runs: an SQLite file, or postgresql+psycopg://user@host/name; left open: a simulation "
        "keeps its own in out.",
        "",
        check=_check_ledger,
    )
    signing_key: str = setting(
        "Ed25519 key, in PEM, that signs grants and the ledger's heads; made where there is none. Left open: a "
        "deployment's is ~/.fedprivacy/signing.key.",
        "",
    )
    trackers: str = setting(
        f"Trackers told of every round, separated by commas: {', '.join(TRACKERS)} (offline). Each is an extra: "
        "pip install 'fedprivacy[tensorboard]'.",
        "",
        check=check_trackers,
    )
    questions: str = setting(
        "Questions to ask the clients instead of training, as 'fedprivacy ask' takes them: of a deployment's run.", ""
    )
    resume: str = setting(
        "Folder of a run that was stopped: go on after its last finished round, with its own settings.", ""
    )
    node_timeout: float = setting("Seconds to wait for enough clients.", 120.0, bounds=(0.0, 1e9))
    round_timeout: float = setting("Seconds to wait for a round's replies.", 3600.0, bounds=(LEAST, 1e9))

    def ledger_url(self, *, deployed: bool) -> str:
        """Address of the ledger for charges: a deployment's outlives every run, and a simulation keeps its own."""
        from fedprivacy.ledger.database import default_url, file_url

        if self.ledger:
            return self.ledger
        return default_url() if deployed else file_url(Path(self.out) / LEDGER)

    @property
    def signing_key_file(self) -> Path:
        """The file of the key that signs in a deployment; a simulation signs only if the key is named."""
        return Path(self.signing_key) if self.signing_key else Path.home() / ".fedprivacy" / "signing.key"
