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

The constants were chosen on public data: bundled digits and biopsies, Location-30 (Shokri et al. 2017), School, MNIST
and Fed-TCGA-BRCA, by their public test sets, with seeds 100 to 105. `docs/how-to/recommend.md` holds what they reach.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedprivacy.accounting.calibration import noise_multiplier
from fedprivacy.runs.plans.advice import about_delta, simulated_sizes
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import plan_of
from fedprivacy.runs.settings.configuration import ConfigError, Value
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords
from fedprivacy.tasks import ShardSource, Task
from fedprivacy.tasks.loader import OBJECT, shard_of
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.wording import count_text

STEPS = 100
"""Rounds of one local step. From 60 to 200 results hardly differ, as the noise of all of them together does not."""

CLIPPING_NORM = 0.3
"""Below nearly every gradient of inputs of order one; a tenth to one do alike, at the same path."""

DRIFT = 0.2
"""Standard deviation of what the noise of all steps adds to a parameter. Half and twice of it cost a point or two."""

LONGEST_STRIDES = {"number": 0.2, "scores": 4.0}
"""The most that a step moves the model, in Euclidean norm, where it has one output, such as a figure of order one that
squared error is of, and where it has several, such as classes' scores."""

EMA_DECAY = 0.9

SAMPLING_RATES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
SLACK = 1.03
"""Factor by which noise may exceed that of taking all records in all steps, in exchange for less work."""

LOUD = 0.2
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
    """

    clients: int
    records: float
    guessed: bool
    parameters: int
    outputs: int | None

    def __str__(self) -> str:
        """The recommendation in words."""
        records = f"{'about ' * self.guessed}{self.records:,.0f} records in {count_text(self.clients, 'client')}"
        outputs = "" if self.outputs is None else f" and {count_text(self.outputs, 'output')}"
        return f"{records}, a model with {count_text(self.parameters, 'parameter')}{outputs}"


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
        choices: every setting that was chosen.
        noise_multiplier: sigma of a local step, which the budget needs.
        loudness: Euclidean norm of the noise of all steps, over the length of the path: the less, the better the model.
        advice: what to think about, in words; maybe none.
    """

    task: str
    facts: Facts
    budget: PrivacyBudget
    choices: tuple[Choice, ...]
    noise_multiplier: float
    loudness: float
    advice: tuple[str, ...]

    @property
    def settings(self) -> dict[str, int | float | str]:
        """Keywords of `simulate`: `fp.simulate(task, **recommendation.settings)`."""
        asked = {"clients": self.facts.clients, "epsilon": self.budget.epsilon, "delta": self.budget.delta}
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

    Raises:
        ConfigError: lists what is wrong with the settings, or says what else must be known.
    """
    settings: dict[str, Given] = {"clients": clients, "epsilon": epsilon, "delta": delta}
    with spelt_as_keywords():
        given, own = by_key(task, settings)
        return recommended(given, own, shard_size)


def recommended(
    given: Mapping[str, Value | None], task: Task | None = None, shard_size: float | None = None
) -> Recommendation:
    """The recommendation for settings by hyphenated key, of which clients, epsilon and delta count; see `recommend`."""
    asked = plan_of({**given, "sampling-rate": 1.0, "rounds": STEPS, "local-steps": 1}, task)
    budget, least = asked.config.budget, asked.noise.of()
    if not budget.enforced:
        raise ConfigError(["epsilon is infinite, and without a budget nothing follows; give a number, for example 3."])
    facts = _facts(asked, shard_size)
    rate = sampling_rate(budget, asked.relation, least)
    plan = plan_of({**given, "sampling-rate": rate, "rounds": STEPS, "local-steps": 1}, task)
    spread = plan.noise.of() / (rate * math.sqrt(STEPS)) * math.sqrt(facts.clients) / facts.records
    stride = min(DRIFT / spread / STEPS, LONGEST_STRIDES["number" if facts.outputs == 1 else "scores"])
    loudness = spread * math.sqrt(facts.parameters)
    return Recommendation(
        task="" if plan.config.task.startswith(OBJECT) else plan.config.task,
        facts=facts,
        budget=budget,
        choices=_choices(facts, rate, stride, spread * stride * STEPS, plan.noise.of() / (rate * least)),
        noise_multiplier=plan.noise.of(),
        loudness=loudness,
        advice=_advice(plan, facts, loudness),
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
            [f"how many records a client of '{plan.task.name}' has is not known here; give a guess of the shard size."]
        )
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    records = sum(known) if known else clients * float(guess or 0)
    return Facts(clients, records, not known, parameters, _outputs(model, _example(plan, model, opened=bool(known))))


def _example(plan: TrainingPlan, model: nn.Module, *, opened: bool) -> Tensor | None:
    """A made-up record of zeros; None: nothing public tells its shape."""
    if opened:
        shard = shard_of(plan.task, ShardSource(partition_id=0, num_partitions=plan.config.clients))
        return shard.inputs.new_zeros(1, *shard.inputs.shape[1:])
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


def _choices(facts: Facts, rate: float, stride: float, drift: float, noise: float) -> tuple[Choice, ...]:
    """Every setting; `noise` is how much there is over what the sampling rate 1 would need."""
    extra = max(100.0 * (noise - 1.0), 0.0)
    why_rate = (
        f"{extra:.1f} % more noise than all records in all steps would need, which is the least, for {rate:.0%} of the "
        "work"
        if rate < 1.0
        else "all records in all steps: for a given budget that needs the least noise"
    )
    far = f"a step moves the model by at most {stride:.2g} (this times the clipping norm)"
    limit = (
        f"over all steps the noise then moves each parameter by {drift:.2g}"
        if drift > 0.99 * DRIFT
        else f"longer steps would overshoot, though noise moves each parameter by {drift:.2g} only"
    )
    return (
        Choice(
            "rounds",
            STEPS,
            "more steps would be noisier, so that all together are no better; fewer would have to be long ones",
        ),
        Choice("local-steps", 1, "clients average after each step, which divides the noise before the next one"),
        Choice("sampling-rate", rate, why_rate),
        Choice(
            "clipping-norm",
            CLIPPING_NORM,
            "below most gradients: each record then gives a direction, and the noise is in proportion",
        ),
        Choice("optimizer", "sgd", "one that adapts to each parameter would adapt to its noise"),
        Choice("learning-rate", float(f"{stride / CLIPPING_NORM:.2g}"), f"{far}; {limit}"),
        Choice("momentum", 0.0, "it would carry noise along with the gradients"),
        Choice("weight-decay", 0.0, "the path is short"),
        Choice("ema-decay", EMA_DECAY, "an average of the last ten models holds less noise than the last, for nothing"),
    )


def _advice(plan: TrainingPlan, facts: Facts, loudness: float) -> tuple[str, ...]:
    sizes = dict.fromkeys(plan.simulated_clients, facts.records / facts.clients)
    loud = (
        f"The noise of all steps is {loudness:.0%} as long as the whole path: too much for so many parameters. A "
        "smaller model, public features, more clients or a larger epsilon would help."
    )
    return tuple(filter(None, (loud if loudness > LOUD else "", about_delta(plan, sizes))))
