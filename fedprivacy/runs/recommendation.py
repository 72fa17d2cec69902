"""Settings for a task's private training, chosen from public facts alone, each with the reason why.

What is known: how many clients there are, how many records each has where that is public, the model, the budget. What
the records say is not, and nothing here is tried on them. Three rules follow.

How much noise a budget costs. For C the clipping norm, q the sampling rate and T the number of local steps, the noise
of all steps together grows with sigma / (q sqrt(T)), and calibration keeps that quotient nearly constant: it is least
for q = 1, whatever T is, and a smaller q is free only as long as T q is large (`sampling_rate`). So many records in
each step, and as many steps as rounds are affordable.

How far to go. Clipping to a small norm makes each record's gradient a direction, so the learning rate alone says
nothing: what counts is the *path*, learning rate x C x T, the way that the model would go if all records agreed in all
steps (Bu, Wang, Zha, Karypis 2023, Automatic clipping). Noise displaces every parameter in proportion to it, by
path x sigma / (q sqrt(T)) x sqrt(clients) / records, as clients are averaged. The path is chosen so that this is
`DRIFT`.

How far in one step. With much data and little noise it is the step that must not be too long: `LONGEST_STRIDES`.

What an algorithm changes (`_Training`). Parameters that stay with their client are not averaged, so their noise is
sqrt(clients) times as large. Ditto and FedRep spend half of the steps on each of two parts. SCAFFOLD corrects nothing
in rounds of one step. The pull of MR-MTL and Ditto, with the learning rate, says how much of a client's own way each
step forgets: `_Training.product`.

The constants were chosen on public data: bundled digits and biopsies, Location-30 (Shokri et al. 2017), School, MNIST
and Fed-TCGA-BRCA, by their public test sets, with seeds 100 to 105. `docs/how-to/recommend.md` holds what they reach.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedprivacy.accounting.calibration import noise_multiplier
from fedprivacy.runs.plans.advice import delta_advice, equivalents, simulated_sizes
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import plan_of
from fedprivacy.runs.settings.configuration import ConfigError, Value
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords
from fedprivacy.tasks import ShardSource, Task
from fedprivacy.tasks.loader import OBJECT
from fedprivacy.training.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, arguments_of
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import count_text, plural

STEPS = 100
"""Rounds of one local step. From 60 to 200 results hardly differ, as the noise of all of them together does not."""

CLIPPING_NORM = 0.3
"""Below nearly every gradient of inputs of order one; a tenth to one do alike, at the same path."""

DRIFT = 0.2
"""Standard deviation of what the noise of all steps adds to a parameter. Half and twice of it cost a point or two."""

LONGEST_STRIDES = {"number": 0.2, "scores": 4.0}
"""The most that a step moves the model, in Euclidean norm, where it has one output, such as a figure of order one that
squared error is of, and where it has several, such as classes' scores."""

OWN_STRIDE = 0.3
"""Factor of `LONGEST_STRIDES` for models of the clients' own, whose steps overshoot one by one, with no average."""

LARGEST_PRODUCT = 0.5
"""Largest pull x learning rate. It is the share of the distance to the global model that the pull takes in a step; from
1 on nothing is left, and MR-MTL trains as FedAvg."""

EMA_DECAY = 0.9

SAMPLING_RATES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
SLACK = 1.03
"""Factor by which noise may exceed that of taking all records in all steps, in exchange for less work."""

_LOUD = 0.2
"""Noise of the whole path over its length from which a model suffers visibly."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The public facts of a federation.

    Attributes:
        clients: how many there are.
        records: of all clients together, as far as it is public; else a guess.
        guessed: whether it is a guess: the task's `nominal_shard_size`, or what was given for it.
        parameters: d, how many are trained.
        outputs: of the model for one record; None: nothing tells.
        unit: the task's word for a record.
    """

    clients: int
    records: float
    guessed: bool
    parameters: int
    outputs: int | None
    unit: str = RECORD.name

    def __str__(self) -> str:
        """The recommendation in words."""
        records = (
            f"{'about ' * self.guessed}{self.records:,.0f} {plural(self.unit)} in {count_text(self.clients, 'client')}"
        )
        outputs = "" if self.outputs is None else f" and {count_text(self.outputs, 'output')}"
        return f"{records}, a model with {count_text(self.parameters, 'parameter')}{outputs}"


@dataclass(frozen=True, slots=True)
class _Training:
    """An algorithm's use of a run's local steps.

    Attributes:
        algorithm: its name.
        local_steps: number of local steps in a round.
        clients: their number.
        own: share of the parameters that only their client trains, from 0 to 1.
        given_pull: lambda that the user wants; None: it is left open, or the algorithm has none.
        unit: the task's word for a record.
    """

    algorithm: str
    local_steps: int
    clients: int
    own: float
    given_pull: float | None
    unit: str

    @classmethod
    def of(cls, plan: TrainingPlan) -> _Training:
        """The training of a plan's algorithm."""
        config, model = plan.config, plan.task.model()
        sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        own = sum(sizes[name] for name in config.algorithm_in(1).layers(model)) / sum(sizes.values())
        own = 1.0 if config.algorithm == "local" else own
        return cls(config.algorithm, config.local_steps, config.clients, own, config.pull, plan.unit.name)

    @property
    def moving(self) -> int:
        """Number of steps, of all `STEPS`, that move each part of the model."""
        return STEPS // 2 if "personal_steps" in arguments_of(self.algorithm) else STEPS

    @property
    def pulls(self) -> bool:
        """Tell whether a client's own model is pulled to the global one."""
        return "pull" in arguments_of(self.algorithm)

    @property
    def product(self) -> float:
        """Pull x learning rate with which a client's own way holds as much noise as the global model.

        Own noise is forgotten by that share a in each step, so that 1 / (2 a) steps of it are left, of one client; the
        global model has that of all steps, divided by the number of clients.
        """
        return min(self.clients / (2 * self.moving), LARGEST_PRODUCT)

    def spread(self, noise: float, records: float) -> float:
        """Standard deviation of what the noise of all steps adds to a parameter, for a path of length 1.

        Args:
            noise: sigma of a local step, over the sampling rate.
            records: of all clients together.
        """
        alike = 1.0 - self.own + self.own * self.clients
        return noise / math.sqrt(self.moving) * math.sqrt(self.clients * alike) / records


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, and why it is so.

    Attributes:
        key: as on the command line.
        value: as `simulate` takes it.
        why: in a sentence or two.
    """

    key: str
    value: int | float | str
    why: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Settings for a run, with their reasons.

    Attributes:
        task: what the command line calls it; "": it is an object of this program.
        facts: from which the settings follow.
        budget: epsilon and delta.
        algorithm: the clients' algorithm.
        choices: every setting that was chosen.
        noise_multiplier: sigma of a local step, which the budget needs.
        loudness: Euclidean norm of the noise of all steps, over the length of the path: the less, the better the model.
        advice: what to think about, in words; maybe none.
    """

    task: str
    facts: Facts
    budget: PrivacyBudget
    algorithm: str
    choices: tuple[Choice, ...]
    noise_multiplier: float
    loudness: float
    advice: tuple[str, ...]

    @property
    def settings(self) -> dict[str, int | float | str]:
        """Keywords of `simulate`: `fp.simulate(task, **recommendation.settings)`."""
        asked: dict[str, int | float | str] = {
            "clients": self.facts.clients,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
        }
        asked |= {"algorithm": self.algorithm} if self.algorithm != DEFAULT_ALGORITHM else {}
        return asked | {choice.key.replace("-", "_"): choice.value for choice in self.choices}

    @property
    def call(self) -> str:
        """A line of Python that trains with them."""
        keywords = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"fp.simulate({json.dumps(self.task) if self.task else 'task'}, {keywords})"

    @property
    def options(self) -> str:
        """The same as options of the command `simulate`."""
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())
        return f"--task {shlex.quote(self.task)} {options}" if self.task else options


def recommend(
    task: GivenTask = None,
    *,
    clients: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    shard_size: float | None = None,
    algorithm: str | None = None,
    pull: float | None = None,
) -> Recommendation:
    """Choose clipping norm, sampling rate, rounds and learning rate for a task, from public facts alone. Runs nothing.

    No record is looked at: where shard sizes are public, shards are opened to count them and for the shape of a record,
    else they are not even opened.

    >>> import fedprivacy as fp
    >>> recommended = fp.recommend("cancer", epsilon=1.0)
    >>> recommended.settings["sampling_rate"], recommended.settings["clipping_norm"]
    (0.2, 0.3)
    >>> run = fp.simulate("cancer", **recommended.settings | {"rounds": 2}, progress=False)

    Args:
        task: an object of a `Task`, its class, a built-in task's name, or "path/to/file.py:Name"; None: "digits".
        clients: how many; None: as the recipe says.
        epsilon: each client's budget, finite; None: the recipe's.
        delta: of that budget; None: the recipe's.
        shard_size: a public guess of how many records a client has, where that is not known: sizes are private or can
            be read on the clients' own hosts alone. None: the task's `nominal_shard_size`.
        algorithm: the clients' algorithm; None: "fedavg".
        pull: lambda of MR-MTL and Ditto, for which the learning rate is then small enough; None: one that suits the
            learning rate.

    Raises:
        ConfigError: lists what is wrong with the settings, or says what else must be known.
    """
    settings: dict[str, Given] = {"clients": clients, "epsilon": epsilon, "delta": delta}
    settings |= {"algorithm": algorithm, "pull": pull}
    with spelt_as_keywords():
        given, own = by_key(task, settings)
        return recommendation(given, own, shard_size)


def recommendation(
    given: Mapping[str, Value | None], task: Task | None = None, shard_size: float | None = None
) -> Recommendation:
    """The recommendation for settings by hyphenated key; see `recommend`, whose settings count."""
    if given.get("epsilon") == math.inf:
        raise ConfigError("epsilon is inf, and without a budget nothing follows; give a number, for example 3.")
    algorithm = str(given.get("algorithm") or DEFAULT_ALGORITHM)
    fewest = ALGORITHMS[algorithm].fewest_steps if algorithm in ALGORITHMS else 1
    steps = 2 if algorithm == "scaffold" else fewest  # with one local step, SCAFFOLD is FedAvg
    given = {**given, "rounds": STEPS // steps, "local-steps": steps, "optimizer": "sgd"}
    given |= {"momentum": 0.0, "weight-decay": 0.0}
    asked = plan_of({**given, "sampling-rate": 1.0}, task)
    budget, least = asked.config.budget, asked.noise.of()
    if shard_size is not None and (not isinstance(shard_size, int | float) or not 1.0 <= shard_size < math.inf):
        raise ConfigError(f"shard size is {shard_size!r}; give a number of records, at least 1, or leave it out.")
    facts = _facts(asked, shard_size)
    rate = sampling_rate(budget, asked.relation, least)
    plan = plan_of({**given, "sampling-rate": rate}, task)
    training = _Training.of(plan)
    spread = training.spread(plan.noise.of() / rate, facts.records)
    longest = LONGEST_STRIDES["number" if facts.outputs == 1 else "scores"]
    longest *= OWN_STRIDE if training.pulls or training.own else 1.0
    if training.pulls and plan.config.pull:
        longest = min(longest, LARGEST_PRODUCT / plan.config.pull * CLIPPING_NORM)
    stride = min(DRIFT / spread / training.moving, longest)
    loudness = spread * math.sqrt(facts.parameters)
    choices = _choices(training, rate, stride, spread * stride * training.moving, plan.noise.of() / (rate * least))
    return Recommendation(
        task="" if plan.config.task.startswith(OBJECT) else plan.config.task,
        facts=facts,
        budget=budget,
        algorithm=plan.config.algorithm,
        choices=choices,
        noise_multiplier=plan.noise.of(),
        loudness=loudness,
        advice=_advice(plan, facts, loudness, choices),
    )


def sampling_rate(budget: PrivacyBudget, relation: NeighbouringRelation, least: float) -> float:
    """The smallest sampling rate that costs hardly more noise than 1, which needs sigma `least`, over `STEPS` steps."""
    for rate in SAMPLING_RATES:
        if rate == 1.0 or noise_multiplier(budget, rate, STEPS, relation) <= SLACK * least * rate:
            return rate
    return 1.0


def _facts(plan: TrainingPlan, shard_size: float | None) -> Facts:
    clients, model = plan.config.clients, plan.task.model()
    known = list(simulated_sizes(plan).values()) if plan.task.shard_sizes_public else []
    guess = shard_size or plan.task.nominal_shard_size
    if not known and not guess:
        raise ConfigError(
            f"how many records a client of '{plan.task.name}' has is not known here; give a guess of the shard size."
        )
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    records = sum(known) if known else clients * float(guess or 0)
    outputs = _outputs(model, _example(plan, model, opened=bool(known)))
    return Facts(clients, records, not known, parameters, outputs, plan.unit.name)


def _example(plan: TrainingPlan, model: nn.Module, *, opened: bool) -> Tensor | None:
    """A made-up record of zeros; None: nothing public tells its shape."""
    if opened:
        shard = plan.task.shard(ShardSource(partition_id=0, num_partitions=plan.config.clients))
        inputs, _ = shard.blank
        return inputs.new_zeros(1, *inputs.shape[1:])
    first = next((layer for layer in model.modules() if not list(layer.children())), None)
    return torch.zeros(1, first.in_features) if isinstance(first, nn.Linear) else None


def _outputs(model: nn.Module, example: Tensor | None) -> int | None:
    if example is None:
        return None
    with torch.no_grad():
        try:
            return int(model(example).numel())
        except Exception:  # a model that wants another shape than its first layer tells
            return None


def _choices(training: _Training, rate: float, stride: float, drift: float, noise: float) -> tuple[Choice, ...]:
    """Every setting; `noise` is how much there is over what the sampling rate 1 would need."""
    learning_rate = float(f"{stride / CLIPPING_NORM:.2g}")
    return (
        Choice(
            "rounds",
            STEPS // training.local_steps,
            "more steps would be noisier, so that all together are no better; fewer would have to be long ones",
        ),
        _local_steps_choice(training),
        Choice("sampling-rate", rate, _why_rate(rate, noise, plural(training.unit))),
        Choice(
            "clipping-norm",
            CLIPPING_NORM,
            f"below most gradients: each {training.unit} then gives a direction, and the noise is in proportion",
        ),
        Choice("optimizer", "sgd", "one that adapts to each parameter would adapt to its noise"),
        Choice("learning-rate", learning_rate, _why_learning_rate(training, stride, drift)),
        *([_pull_choice(training, learning_rate)] if training.pulls else []),
        Choice("momentum", 0.0, "it would carry noise along with the gradients"),
        Choice("weight-decay", 0.0, "the path is short"),
        Choice("ema-decay", EMA_DECAY, "an average of the last ten models holds less noise than the last, for nothing"),
    )


def _local_steps_choice(training: _Training) -> Choice:
    why = "clients average after each step, which divides the noise before the next one"
    if training.algorithm == "scaffold":
        why = "with one step, the corrections of all clients cancel out, and it is fedavg"
    elif training.algorithm == "local":
        why = "nothing is averaged, so that all divisions into rounds are alike"
    elif training.local_steps > 1:
        why = f"{training.algorithm} divides them: one for what is shared, one for what is a client's own"
    return Choice("local-steps", training.local_steps, why)


def _why_rate(rate: float, noise: float, many: str) -> str:
    if rate == 1.0:
        return f"all {many} in all steps: for a given budget that needs the least noise"
    extra = max(100.0 * (noise - 1.0), 0.0)
    return (
        f"{extra:.1f} % more noise than all {many} in all steps would need, which is the least, for {rate:.0%} of the "
        "work"
    )


def _why_learning_rate(training: _Training, stride: float, drift: float) -> str:
    far = f"a step moves the model by at most {stride:.2g} (this times the clipping norm)"
    unaveraged = f"; {training.own:.0%} of the parameters are not averaged" if training.own else ""
    if drift > 0.99 * DRIFT:
        return f"{far}; over all steps the noise then moves each parameter by {drift:.2g}{unaveraged}"
    pull = training.given_pull
    limit = "longer steps would overshoot"
    if pull and stride > 0.99 * LARGEST_PRODUCT / pull * CLIPPING_NORM:
        limit = f"with pull {pull:g} it leaves each client half of its own way in a step, and a larger one less"
    return f"{far}; {limit}, though noise moves each parameter by {drift:.2g} only{unaveraged}"


def _pull_choice(training: _Training, learning_rate: float) -> Choice:
    """The given pull, or one that suits the learning rate."""
    pull = training.given_pull
    if pull is None:
        pull = float(f"{training.product / learning_rate:.2g}")
    product = pull * learning_rate
    why = (
        f"times the learning rate it is {product:.2g}, the share of its own way that a client forgets in a step; from "
        "1 on it would forget all of it, and begin each round at the global model"
    )
    return Choice("pull", pull, why)


def _advice(plan: TrainingPlan, facts: Facts, loudness: float, choices: tuple[Choice, ...]) -> tuple[str, ...]:
    sizes = dict.fromkeys(plan.simulated_clients, facts.records / facts.clients)
    loud = (
        f"The noise of all steps is {loudness:.0%} as long as the whole path: too much for so many parameters. A "
        "smaller model, public features, more clients or a larger epsilon would help."
    )
    chosen: dict[str, Any] = {choice.key.replace("-", "_"): choice.value for choice in choices}
    said = loud if loudness > _LOUD else "", delta_advice(plan, sizes), *equivalents(replace(plan.config, **chosen))
    return tuple(filter(None, said))
