"""Bugs in the code that really runs, planted one at a time: the auditor's gates must catch each, whatever the seed.

A plant is a small patch of the client's own path (`fedprivacy.training`, `gradients`, `flower.client`, the books). Its
meaning is what counts: when the code has moved on, plant the same meaning in today's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from torch import nn

from fedprivacy.accounting.population import PopulationAccountant
from fedprivacy.audit import asking
from fedprivacy.audit.gates.audited import Audited, Effort
from fedprivacy.flower import private_client
from fedprivacy.flower.client import release as release_module
from fedprivacy.flower.client.local import LocalClient
from fedprivacy.flower.client.node import NodeSettings
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.asking import QuestionAccounts
from fedprivacy.flower.wire.messages import ASK, Refusal
from fedprivacy.gradients import GradientEngine, PerLayerClipping
from fedprivacy.gradients import apart as apart_module
from fedprivacy.gradients import engine as engine_module
from fedprivacy.gradients import products as products_module
from fedprivacy.gradients.apart import RowByRow
from fedprivacy.gradients.engine import Clipped
from fedprivacy.gradients.methods import admission
from fedprivacy.gradients.parts import BatchPart, filled
from fedprivacy.gradients.pieces import Gram, added
from fedprivacy.gradients.tape import Gathered, Sized
from fedprivacy.guard.tally import TallyFile
from fedprivacy.ledger import database
from fedprivacy.questions import moments
from fedprivacy.questions import question as question_module
from fedprivacy.questions import release as questions_release
from fedprivacy.questions.cohort import Rows
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.moments import Mean
from fedprivacy.questions.quantiles import Quantiles
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers, NoisyTotals
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.plan import RunPlan
from fedprivacy.tasks import Recipe, Shard, ShardSource, Task, load_task
from fedprivacy.tasks import columns as columns_module
from fedprivacy.training import adaptive as adaptive_module
from fedprivacy.training import dpsgd as dpsgd_module
from fedprivacy.training import evaluation as evaluation_module
from fedprivacy.training import mechanisms
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.evaluation import LocalEvaluation, NoisySums
from fedprivacy.training.keystream import Keystream, Position, Purpose
from fedprivacy.training.mechanisms import SampledGaussianSum

Planted = Callable[[], AbstractContextManager[None]]

CLIP, BY_GROUP, RELEASE, TRAIN = GradientEngine.clip, GradientEngine._by_group, DPSGD._release, DPSGD.train
SUM, SAMPLE, NOISE, READER = (
    SampledGaussianSum.release,
    mechanisms.poisson_sample,
    mechanisms.add_lattice_noise,
    Keystream.reader,
)
RELEASED = release_module.Released.of.__func__
PRODUCT = products_module.product
"""The code as it is."""

SELF_CHECKS = "check_against_loop", "check_nearby"
"""With which the gradient engine holds a way to compute gradients against the loop, before it is used."""


class Small(Task):
    """A perceptron on forty made-up records; how many there are is private."""

    shard_sizes_public = False
    nominal_shard_size = 50
    recipe = Recipe(
        clients=2, rounds=20, local_steps=2, sampling_rate=0.5, clipping_norm=0.5, learning_rate=0.5, delta=1e-4
    )

    def model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id or 0)
        return Shard(torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator))

    def partition(self, num_partitions):
        return f"{num_partitions} parts"


class Spoken(Small):
    """Sequences of four vectors, of which one layer reads each."""

    def shard(self, source):
        generator = torch.Generator().manual_seed(source.partition_id or 0)
        return Shard(torch.randn(40, 4, 64, generator=generator), torch.randint(3, (40,), generator=generator))

    def model(self):
        return Positions()


class Compared(Spoken):
    """The same, of which the model looks at how they differ."""

    def model(self):
        return Positions(centred=True)


class Paired(Spoken):
    """The same, and the layer is called for each."""

    def model(self):
        return Positions(calls=4)


class Positions(nn.Module):
    """A layer large enough for ghost norms, and a head that reads the sum of what it says."""

    def __init__(self, centred=False, calls=1):
        super().__init__()
        self.centred, self.calls = centred, calls
        self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x):
        hidden = torch.cat([self.layer(part) for part in x.split(4 // self.calls, 1)], 1)
        return self.head((torch.tanh(hidden - hidden.mean(1, keepdim=True)) if self.centred else hidden).sum(1))


class Open(Small):
    """The same, with a public number of records."""

    shard_sizes_public = True
    nominal_shard_size = None


@dataclass(frozen=True)
class Plant:
    """One bug.

    Attributes:
        meaning: what goes wrong.
        gates: that catch it, the surest first.
        plant: the patch.
        settings: of the run that is audited, where the bug needs others than usual.
        task: that is audited.
    """

    meaning: str
    gates: tuple[str, ...]
    plant: Planted
    settings: dict[str, Any] = field(default_factory=dict)
    task: type[Task] = Small


def audited(seed: int, task: type[Task] = Small, effort: Effort = Effort.QUICK, **settings: Any) -> Audited:
    """What is audited: a new task each time, so that nothing that was computed under another plant is kept for it."""
    given = {"noise-multiplier": 1.0, "device": "cpu"} | {name.replace("_", "-"): v for name, v in settings.items()}
    return Audited.of(RunPlan.of(given, task()), effort=effort, seed=seed)


# The patches


def patched(target: object, name: str, new: object) -> Planted:
    """A patch of one name."""
    return lambda: mock.patch.object(target, name, new)


def together(*plants: Planted) -> Planted:
    """Several patches at once."""

    @contextmanager
    def planted():
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


NOW: dict[str, Any] = {}
"""What the patches know of the step that is computed: its divisor, its sample, its layers' sizes, its records."""


def noting(self, engine, shard, norm, keystream, position):
    NOW.update(divisor=self.expected_batch_size, sizes=[shape.numel() for shape in engine._shapes])
    return RELEASE(self, engine, shard, norm, keystream, position)


def noting_sample(rate, records, keystream, position):
    sample = SAMPLE(rate, records, keystream, position)
    NOW.update(sample=sample, records=records)
    return sample


NOTING = together(patched(DPSGD, "_release", noting), patched(mechanisms, "poisson_sample", noting_sample))


def clipping(change: Callable[..., Any]) -> Planted:
    """A patch of the clipped sum: (engine, inputs, targets, C) -> total, shape [d]."""

    def clip(self, inputs, targets, norm, mask=None):
        return Clipped(change(self, inputs, targets, norm), CLIP(self, inputs, targets, norm).squared_norms)

    return together(NOTING, patched(GradientEngine, "clip", clip))


def gradients(engine, inputs, targets):
    """Every record's gradient before it is clipped, [records, d]; of one that has none, zeros."""
    none = torch.zeros(0, sum(shape.numel() for shape in engine._shapes), dtype=torch.float64)
    rows = [CLIP(engine, inputs[i : i + 1], targets[i : i + 1], 1e30).total for i in range(len(inputs))]
    return torch.stack(rows) if rows else none


def clipped(rows, norm):
    return rows * (norm / rows.norm(dim=-1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)


def noise_of(change: Callable[..., Any]) -> Planted:
    """A patch of the noise: (total, scale, step, read, dtype) -> released."""
    return together(NOTING, patched(mechanisms, "add_lattice_noise", change))


def scaled_noise(factor):
    return noise_of(lambda total, scale, step, read, dtype=None: NOISE(total, factor() * scale, step, read, dtype))


def without_noise(layer):
    def add(total, scale, step, read, dtype=None):
        released = NOISE(total, scale, step, read, dtype)
        start, stop = (0, NOW["sizes"][0]) if layer == 0 else (len(total) - NOW["sizes"][-1], len(total))
        released[start:stop] = total[start:stop]
        return released

    return noise_of(add)


def sampling(change: Callable[..., Any]) -> Planted:
    """A patch of the sample: (rate, records, keystream, position) -> indices."""
    return patched(mechanisms, "poisson_sample", change)


def reading(change: Callable[..., Any]) -> Planted:
    """A patch of the words that noise is made of: (keystream, position) -> both."""

    def reader(self, purpose, position):
        keystream, position = change(self, position) if purpose is Purpose.NOISE else (self, position)
        return READER(keystream, purpose, position)

    return patched(Keystream, "reader", reader)


def after_release(change: Callable[..., Any]) -> Planted:
    """A patch of a released sum: (released, DPSGD, shard) -> what is used instead."""

    def release(self, engine, shard, norm, keystream, position):
        released, following = noting(self, engine, shard, norm, keystream, position)
        return change(released, self, shard), following

    return together(NOTING, patched(DPSGD, "_release", release))


def batch_clipped(engine, inputs, targets, norm):
    rows = gradients(engine, inputs, targets)
    return NOW["divisor"] * clipped(rows.mean(0), norm) if len(rows) else rows.sum(0)


def micro_batches(engine, inputs, targets, norm):
    rows = gradients(engine, inputs, targets)
    return sum(
        (len(some) * clipped(some.mean(0), norm) for some in rows.split(4) if len(some)), rows.new_zeros(rows.shape[1])
    )


class Loose(PerLayerClipping):
    """Each layer to C."""

    def scales(self, squared_norms, clipping_norm):
        return super().scales(squared_norms, clipping_norm * len(squared_norms) ** 0.5)


def by_largest_entry(engine, inputs, targets, norm):
    rows = gradients(engine, inputs, targets)
    return (rows * (norm / rows.abs().amax(1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)).sum(0)


def not_a_number(engine, inputs, targets, norm):
    total = CLIP(engine, inputs, targets, norm).total
    return total if bool(inputs.isfinite().all()) else total * torch.nan


def centred(self, inputs, targets, norm, mask=None):
    return CLIP(self, inputs - inputs.mean(0) if len(inputs) else inputs, targets, norm, mask)


def by_records(engine, inputs, targets, norm):
    return CLIP(engine, inputs, targets, norm).total * (NOW["divisor"] / max(len(inputs), 1))


def shuffled(rate, records, keystream, position):
    size = max(round(rate * records), 1)
    epoch, turn = divmod(position.step - 1, max(records // size, 1))
    order = np.random.default_rng([*keystream.key, keystream.stream, position.round, epoch]).permutation(records)
    return order[turn * size : (turn + 1) * size]


def fixed_size(rate, records, keystream, position):
    order = np.random.default_rng([*keystream.key, keystream.stream, position.round, position.step]).permutation(
        records
    )
    return order[: round(rate * records)]


def twice_the_last(rate, records, keystream, position):
    sample = SAMPLE(rate, records, keystream, position)
    return np.append(sample, records - 1) if records and records - 1 in sample else sample


def skipping(self, clipped_sum, records, keystream, position):
    if len(SAMPLE(self.event.sampling_rate, records, keystream, position)):
        return SUM(self, clipped_sum, records, keystream, position)
    return torch.zeros_like(clipped_sum(np.zeros(0, dtype=np.intp), 1.0), dtype=torch.float32)


def by_true_size(self, engine, shard, **rest):
    return TRAIN(
        replace(self, expected_batch_size=max(self.mechanism.event.sampling_rate * len(shard), 1.0)),
        engine,
        shard,
        **rest,
    )


def diagonal(self):
    inputs, grads = self.sources
    return (inputs.norm(dim=2) * grads.norm(dim=2)).norm(dim=1)


def in_float32(self):
    inputs, grads = (factor.float() for factor in self.sources)
    gram = torch.bmm(inputs, inputs.transpose(1, 2)) * torch.bmm(grads, grads.transpose(1, 2))
    return gram.sum((1, 2)).clamp(min=0.0).sqrt()


def use_by_use(self, part):
    uses = self._uses.pop(part)
    norms = torch.stack([piece.norms().double() for piece in uses]).norm(dim=0)
    self._sized.append(Sized(part, added(uses, self._kept_bytes), norms))


def without_biases(self, pieces):
    return BY_GROUP(self, [sized for sized in pieces if len(self._shapes[sized.part.place]) > 1] or pieces)


def unchecked(plant: Planted) -> Planted:
    """A wrong norm that the engine's self-check would refuse, where that check is missing too."""
    return together(plant, *(patched(admission, name, lambda *_, **__: None) for name in SELF_CHECKS))


def momentum_first(self, engine, shard, **rest):
    NOW["buffer"] = 0.0
    return TRAIN(self, engine, shard, **rest)


def buffered(engine, inputs, targets, norm):
    NOW["buffer"] = 0.9 * NOW["buffer"] + CLIP(engine, inputs, targets, norm).total
    return NOW["buffer"].clone()


def shrunk(released, training, shard):
    """The noisy sum, no longer than four clipping norms: post-processing, harmless."""
    most = 4.0 * training.mechanism.clipping_norm
    return released * min(1.0, most / max(float(released.norm()), 1e-30))


def per_layer_at_c():
    return mock.patch.dict(adaptive_module.CLIPPINGS, flat=Loose)


PUBLISHED = (
    Plant("half of the noise", ("noise", "ledger"), scaled_noise(lambda: 0.5)),
    Plant("a tenth too little noise", ("noise",), scaled_noise(lambda: 0.9)),
    Plant("the mean of a batch is clipped, with noise for a record's share", ("replay",), clipping(batch_clipped)),
    Plant(
        "the mean of a batch is clipped, with noise for the mean",
        ("replay", "noise"),
        together(clipping(batch_clipped), scaled_noise(lambda: NOW["divisor"])),
    ),
    Plant("micro-batches of four are clipped, not records", ("replay",), clipping(micro_batches)),
    Plant("each layer is clipped to C", ("replay",), per_layer_at_c),
    Plant("the largest entry is clipped to C, not the norm", ("replay",), clipping(by_largest_entry)),
    Plant("no noise on the last bias", ("noise",), without_noise(-1)),
    Plant("no noise on the first weight", ("noise",), without_noise(0)),
    Plant(
        "the noisy sum is divided by how many records joined",
        ("replay", "sampling"),
        after_release(lambda released, *_: released * (NOW["divisor"] / max(len(NOW["sample"]), 1))),
    ),
    Plant("the sum is divided by how many records joined, before the noise", ("replay",), clipping(by_records)),
    Plant("shuffled batches instead of Poisson samples", ("sampling",), sampling(shuffled)),
    Plant("batches of a fixed size", ("sampling",), sampling(fixed_size)),
    Plant(
        "the sampler begins anew in each round",
        ("sampling",),
        sampling(lambda rate, n, key, position: SAMPLE(rate, n, key, Position(1, position.step))),
    ),
    Plant("the noise begins anew in each step", ("noise",), reading(lambda k, p: (k, Position(p.round, 1)))),
    Plant("all clients have the same noise", ("noise",), reading(lambda k, p: (Keystream(bytes(32)), p))),
    Plant("an empty batch is skipped", ("noise",), patched(SampledGaussianSum, "release", skipping)),
    Plant("a record that is not a number passes", ("replay",), clipping(not_a_number)),
    Plant(
        "the learning rate follows from the true number of records", ("replay",), patched(DPSGD, "train", by_true_size)
    ),
    Plant(
        "records are centred by the mean of their batch",
        ("replay", "invariance"),
        patched(GradientEngine, "clip", centred),
    ),
    Plant(
        "four augmentations of a record, each clipped and all summed",
        ("replay",),
        clipping(lambda engine, inputs, targets, norm: 4.0 * CLIP(engine, inputs, targets, norm).total),
    ),
    Plant(
        "momentum of sums that carry no noise",
        ("replay",),
        together(patched(DPSGD, "train", momentum_first), clipping(buffered)),
    ),
    Plant("a record is counted twice", ("replay", "sampling"), sampling(twice_the_last)),
)
"""The 23 of published audits of other libraries."""


def counting_rounds(self, event, past, allowance=None):
    return np.minimum(np.arange(1, self.config.rounds + 1), self.limit(past, allowance).quota(past, event))


EPSILON_BY_ROUND = RunPlan.epsilon_by_round


def rate_of_everybody(self, event, past, allowance=None):
    rate = event.sampling_rate / self.config.clients
    return EPSILON_BY_ROUND(self, replace(event, sampling_rate=rate), past, allowance)


CLAIMS = (
    Plant(
        "rounds are counted, where steps are executed: five times too few",
        ("ledger",),
        patched(RunPlan, "steps_by_round", counting_rounds),
        {"local_steps": 5},
    ),
    Plant(
        "the sampling rate is that of all clients' records",
        ("ledger",),
        patched(RunPlan, "epsilon_by_round", rate_of_everybody),
    ),
)
"""Claims that are not what was executed."""

HARMLESS = (Plant("the noisy sum is shrunk after the noise", (), after_release(shrunk)),)
"""What costs no privacy: no gate may fail."""


# Bugs that the project's own tests did not notice at first


def at_one_step(rate, records, keystream, position):
    return SAMPLE(rate, records, keystream, Position(position.round, 1))


def everybody_from(rate, records, keystream, position):
    return SAMPLE(1.0 if rate >= 0.9 else rate, records, keystream, position)


def half_as_often_again(rate, records, keystream, position):
    return SAMPLE(min(1.5 * rate, 0.99), records, keystream, position)


def first_step_alone(self, clipped_sum, records, keystream, position):
    silent = replace(self, event=replace(self.event, noise_multiplier=1e-6))
    return SUM(self if position.step == 1 else silent, clipped_sum, records, keystream, position)


def seeded_by(name: Callable[[int, int], tuple[int, int]]) -> Planted:
    """A patch of a seeded client's key: (earlier runs, attempt) -> both."""
    real = Keystream.from_seed

    def from_seed(seed, dataset, earlier_runs=0, attempt=1):
        return real(seed, dataset, *name(earlier_runs, attempt))

    return patched(Keystream, "from_seed", staticmethod(from_seed))


def norm_of_noise(change: Callable[[float, float], float]) -> Planted:
    """A patch of the norm that the noise of adaptive clipping goes by: (at the round's start, now) -> that."""
    return patched(
        dpsgd_module,
        "replace",
        lambda m, clipping_norm: replace(m, clipping_norm=change(m.clipping_norm, clipping_norm)),
    )


def true_count():
    joined, next_norm = QuantileClipping.joined, QuantileClipping.next_norm

    def noting_count(self, clipped, norm):
        whole = joined(self, clipped, norm)
        NOW["count"] = float(whole[-1])
        return whole

    def by_true_count(self, noisy, norm, batch):
        return next_norm(self, NOW["count"], norm, batch)

    return together(
        patched(QuantileClipping, "joined", noting_count), patched(QuantileClipping, "next_norm", by_true_count)
    )()


def evaluating(task, config):
    """The client's app, with an evaluation of its own records."""
    app = private_client(task, config)

    @app.evaluate()
    def evaluate(message, context):
        parts = int(context.node_config["num-partitions"])
        shard = task.shard(ShardSource(partition_id=int(context.node_config["partition-id"]), num_partitions=parts))
        metrics = MetricRecord({"mean": float(shard.inputs.nan_to_num().sum()), "records": len(shard)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def by_configuration():
    left = CentralAccountant._left
    return mock.patch.object(
        CentralAccountant, "_left", lambda self, dataset, _, history: left(self, dataset, self._asked, history)
    )


def at_configured_delta():
    enrol = CentralAccountant.enrol

    def enrolled(self, *given):
        added = enrol(self, *given)
        clients, delta = self._odometer._clients, self._asked.budget.delta
        clients |= {dataset: client._replace(delta=delta) for dataset, client in clients.items()}
        return added

    return mock.patch.object(CentralAccountant, "enrol", enrolled)


def rates_rounded_down():
    mechanisms_of = PopulationAccountant.mechanisms

    def rounded(self, events):
        return mechanisms_of(self, [replace(event, sampling_rate=0.97 * event.sampling_rate) for event in events])

    return mock.patch.object(PopulationAccountant, "mechanisms", rounded)


class Anybodys(dict):
    """The norm of whoever came last."""

    def get(self, _, usual=None):
        return next(reversed(self.values()), usual)


def norms_of_anybody():
    opened = RunAccounts.__init__

    def init(self, *given, **named):
        opened(self, *given, **named)
        self.clipping_norms = Anybodys(self.clipping_norms)

    return mock.patch.object(RunAccounts, "__init__", init)


def begun_together(connection):
    connection.exec_driver_sql("BEGIN")


ADAPTIVE = {"clipping": "adaptive", "noise_multiplier": 2.0}

SURVIVORS = (
    Plant("one sample for all steps of a round", ("sampling",), sampling(at_one_step)),
    Plant(
        "two attempts at a round have the same randomness", ("sampling", "noise"), seeded_by(lambda runs, _: (runs, 1))
    ),
    Plant("two runs have the same randomness", ("sampling", "noise"), seeded_by(lambda _, attempt: (0, attempt))),
    Plant(
        "a secret key is kept",
        ("sampling", "noise"),
        patched(Keystream, "secret", staticmethod(lambda: Keystream(bytes(32)))),
    ),
    Plant("a rate of .9 or more takes everybody", ("sampling",), sampling(everybody_from), {"sampling_rate": 0.95}),
    Plant("records join half as often again as the receipt says", ("sampling",), sampling(half_as_often_again)),
    Plant(
        "noise in the first step of a round alone", ("noise",), patched(SampledGaussianSum, "release", first_step_alone)
    ),
    Plant(
        "the noise of adaptive clipping keeps the norm that it began with",
        ("noise",),
        norm_of_noise(lambda start, _: QuantileClipping().sensitivity(start)),
        ADAPTIVE,
    ),
    Plant(
        "the sum of adaptive clipping gets noise for the gradients alone",
        ("noise",),
        norm_of_noise(lambda _, now: now / QuantileClipping().sensitivity(1.0)),
        ADAPTIVE,
    ),
    Plant("the true count moves the clipping norm", ("noise",), true_count, ADAPTIVE),
    Plant("clients evaluate on their own records", ("release",), patched(asking, "private_client", evaluating)),
    Plant("the configuration's budget overrules the ledger's", ("ledger",), by_configuration),
    Plant("epsilon is shown at the configuration's delta", ("ledger",), at_configured_delta),
    Plant("the population's sampling rates are rounded down", ("ledger",), rates_rounded_down),
    Plant("two servers read one balance", ("ledger",), patched(database, "_begin_sqlite", begun_together)),
    Plant("a client is granted another one's clipping norm", ("ledger",), norms_of_anybody, ADAPTIVE),
)
"""What the tests did not notice before `test_sampled`, `test_noise_added`, `test_answered` and `test_charged`."""


# Ways past the guarantee, as it was in version 0.1


def one_part(records, sizes):
    return [BatchPart(0, records, records)] if records else []


def in_another_order(rows, matrix, bias=None):
    """The product of a library that takes an odd number of rows in another order: no part of a fixed size is odd."""
    if len(rows) % 2:
        rows, matrix = rows.flip(-1), matrix.flip(0)
    return PRODUCT(rows, matrix, bias)


def of_any_size(module):
    """Batches of any size, on a processor with such a library."""
    return together(patched(module, "cut", one_part), patched(products_module, "product", in_another_order))


def typed_by_number(total, scale, step, read, dtype=None):
    return NOISE(total, scale, step, read, torch.float64 if NOW["records"] > 1024 else dtype)


HOLES = (
    Plant(
        "batches of any size: rounding depends on who else is there, and a server amplifies it",
        ("invariance",),
        of_any_size(engine_module),
    ),
    Plant("the type of a sum tells how many records there are", ("release",), noise_of(typed_by_number)),
    Plant(
        "the server names the task, and so what is public",
        ("release",),
        together(
            patched(NodeSettings, "task", lambda self, word, own: load_task(word)),
            patched(NodeSettings, "check_enrolment", lambda *_: None),
        ),
    ),
    Plant(
        "an older copy of a client's book is believed",
        ("ledger",),
        patched(TallyFile, "_check_updates", lambda _: None),
    ),
)
"""The ghost norm that cancelled is among `GHOST_NORMS`."""

GHOST_NORMS = (
    Plant("ghost norms cancel in float32", ("replay",), patched(Gram, "norms", in_float32), task=Compared),
    Plant("norms without the biases", ("replay",), patched(GradientEngine, "_by_group", without_biases)),
    Plant(
        "ghost norms without what crosses between positions",
        ("replay",),
        unchecked(patched(Gram, "norms", diagonal)),
        task=Spoken,
    ),
    Plant(
        "a layer that is used several times is measured use by use",
        ("replay",),
        unchecked(patched(Gathered, "_complete", use_by_use)),
        task=Paired,
    ),
)
"""Norms that are measured too small. The engine's self-check refuses the last two: they are planted without it."""

# What passed the auditor until somebody tried


def weaker_from(round):
    def release(self, clipped_sum, records, keystream, position):
        weak = replace(self, event=replace(self.event, noise_multiplier=0.5 * self.event.noise_multiplier))
        return SUM(weak if position.round >= round else self, clipped_sum, records, keystream, position)

    return patched(SampledGaussianSum, "release", release)


def with_noise(change: Callable[[Any, float], Any]) -> Planted:
    """A patch of the drawn noise: (noise, scale) -> what is added instead."""

    def add(total, scale, step, read, dtype=None):
        noise = NOISE(torch.zeros_like(total), scale, step, read, dtype)
        return (total + change(noise, scale)).to(dtype or torch.float32)

    return noise_of(add)


def alike_in_layers(noise, scale):
    sizes = NOW["sizes"]
    return torch.cat([noise[: max(sizes)][:size] for size in sizes]) if sum(sizes) == len(noise) else noise


def without_noise_if_pulled(self, engine, shard, **rest):
    silent = replace(self.mechanism, event=replace(self.mechanism.event, noise_multiplier=1e-6))
    return TRAIN(replace(self, mechanism=silent) if self.proximal_mu > 0.0 else self, engine, shard, **rest)


def enormous_pass(engine, inputs, targets, norm):
    if not len(inputs) or float(inputs.nan_to_num(0.0, 0.0, 0.0).abs().max()) < 1e12:
        return CLIP(engine, inputs, targets, norm).total
    rows = gradients(engine, inputs, targets)
    return torch.where(rows.norm(dim=-1, keepdim=True) > 1e15 * norm, rows, clipped(rows, norm)).sum(0)


def more_in_late_steps(rate, records, keystream, position):
    return SAMPLE(min(1.5 * rate, 0.99) if position.step > 10 else rate, records, keystream, position)


REVIEW = (
    Plant("half of the noise from round 500 on", ("noise",), weaker_from(500)),
    Plant("the noise of each layer begins with the same draws", ("noise",), with_noise(alike_in_layers)),
    Plant("noise that is cut off at 4 deviations", ("noise",), with_noise(lambda n, s: n.clamp(-4.0 * s, 4.0 * s))),
    Plant(
        "every second attempt at a round has the same randomness",
        ("noise",),
        seeded_by(lambda runs, attempt: (runs, (attempt - 1) % 2 + 1)),
    ),
    Plant("every second run has the same randomness", ("noise",), seeded_by(lambda runs, at: (runs % 2, at))),
    Plant(
        "no noise where a server pulls towards its model",
        ("release",),
        patched(DPSGD, "train", without_noise_if_pulled),
    ),
    Plant("gradients of enormous norm are not clipped", ("replay",), clipping(enormous_pass)),
    Plant("records join late steps more often", ("sampling",), sampling(more_in_late_steps), {"local_steps": 20}),
)
"""Bugs that a review of the auditor tried, and that no gate noticed before they were."""

# Local evaluation


def evaluated(change: Callable[..., Any]) -> Planted:
    """A patch of the release: (LocalEvaluation, measured, shard, keystream, position) -> noisy sums."""
    return patched(LocalEvaluation, "release", change)


def at_position(name: Callable[[Position], Position]) -> Planted:
    return evaluated(lambda self, measured, shard, key, at: EVALUATE(self, measured, shard, key, name(at)))


def of_everybody(self, measured, shard, keystream, position):
    everybody = replace(self, event=replace(self.event, sampling_rate=1.0))
    return replace(EVALUATE(everybody, measured, shard, keystream, position), event=self.event)


def nothing_of_nobody(self, measured, shard, keystream, position):
    if len(SAMPLE(self.event.sampling_rate, len(shard), keystream, position)):
        return EVALUATE(self, measured, shard, keystream, position)
    return NoisySums(self.event, (0.0,) * (1 + len(self.scores)))


def with_true_count(self, measured, shard, keystream, position):
    noisy = EVALUATE(self, measured, shard, keystream, position)
    silent = replace(self, event=replace(self.event, noise_multiplier=1e-6))
    true = EVALUATE(silent, measured, shard, keystream, position)
    return replace(noisy, sums=(true.sums[0], *noisy.sums[1:]))


def half_as_noisy(self, measured, shard, keystream, position):
    quiet = replace(self, event=replace(self.event, noise_multiplier=0.5 * self.event.noise_multiplier))
    return replace(EVALUATE(quiet, measured, shard, keystream, position), event=self.event)


def unbounded(self, scores):
    known = scores[~scores.isnan().any(1)]
    centred = [2.0 * (part - s.least) / (s.most - s.least) - 1.0 for part, s in zip(known.T, self.scores, strict=True)]
    ones = torch.ones_like(known[:, :1])
    return evaluation_module.unit(len(self.scores)) * torch.cat([ones, *(part[:, None] for part in centred)], 1)


def against_the_mean(self, scores):
    vectors = VECTORS(self, scores)
    return vectors - vectors.mean(0)


def raising(self, ones, others, size):
    found = self.result(filled(ones, size), filled(others, size))[: len(ones)]
    return found, torch.ones(len(ones), dtype=torch.bool)


EVALUATE, VECTORS = LocalEvaluation.release, LocalEvaluation._vectors

EVALUATION = (
    Plant("an evaluation has a training step's noise", ("evaluation",), at_position(lambda p: Position(p.round, 1))),
    Plant("the noise of evaluations begins anew each round", ("evaluation",), at_position(lambda p: Position(1, 99))),
    Plant("an evaluation's count has no noise", ("evaluation",), evaluated(with_true_count)),
    Plant("an evaluation has half of the noise", ("evaluation",), evaluated(half_as_noisy)),
    Plant("everybody is evaluated, and a sample is charged", ("evaluation",), evaluated(of_everybody)),
    Plant("an evaluation of nobody has no noise", ("evaluation",), evaluated(nothing_of_nobody)),
    Plant("scores are not clipped", ("evaluation",), patched(LocalEvaluation, "_vectors", unbounded)),
    Plant(
        "each score has the whole of the sensitivity",
        ("evaluation",),
        patched(evaluation_module, "unit", lambda _: 1.0),
    ),
    Plant("a record that cannot be scored fails the client", ("evaluation",), patched(RowByRow, "_of_part", raising)),
    Plant(
        "scores are taken against the batch's mean",
        ("evaluation",),
        patched(LocalEvaluation, "_vectors", against_the_mean),
    ),
    Plant(
        "outputs are computed in batches of any size, and a server amplifies their rounding",
        ("evaluation",),
        of_any_size(apart_module),
    ),
    Plant(
        "an evaluation is not on the receipt",
        ("ledger",),
        patched(
            release_module.Released,
            "of",
            classmethod(lambda cls, grant, update, _, key: RELEASED(cls, grant, update, None, key)),
        ),
        {"local_evaluation": 1},
    ),
)
"""What may go wrong with local evaluation."""

# Answers to questions


def answered(change: Callable[..., Any]) -> Planted:
    """A patch of the noise of an answer: (totals, scale, step, read) -> noisy totals."""
    return patched(questions_release, "add_lattice_noise", change)


def reading_answers(change: Callable[[Position], tuple[Purpose, Position]]) -> Planted:
    """A patch of the words that an answer's noise is made of."""

    def reader(self, purpose, position):
        return READER(self, *(change(position) if purpose is Purpose.ANSWERS else (purpose, position)))

    return patched(Keystream, "reader", reader)


def one_without_noise(total, scale, step, read):
    released = NOISE(total, scale, step, read)
    released[..., 0] = total[..., 0]
    return released


def silent_if_nobody(total, scale, step, read):
    return NOISE(total, scale, step, read) if total.any() else total.clone()


def counting_its_records(self, questions, table, keystream, position):
    NOW["records"] = len(table)
    return RELEASE_ANSWERS(self, questions, table, keystream, position)


def with_their_number(cls, grant, event, answers, key):
    released = ANSWERED(cls, grant, event, answers, key)
    receipt = replace(released.receipt, clipping_norm=1.0 + 1e-6 * NOW["records"], signature="")
    return replace(released, receipt=receipt.signed(key) if key else receipt)


def told_by_true_number(self, question, table, scale, read):
    noisy = NOISY(self, question, table, scale, read)
    exact = question.totals(table)
    true = [question.records(Noisy(group.astype(float), scale)) for group in exact]
    return NoisyTotals(noisy.totals, np.array(true) >= self.smallest_cohort)


def told_all_the_same(self, question, table, scale, read):
    """Says that a group is too small, and sends its number."""
    open_, hidden = replace(self, smallest_cohort=0.0), NOISY(self, question, table, scale, read)
    return NoisyTotals(NOISY(open_, question, table, scale, read).totals, hidden.told)


def with_the_error(message, code):
    told = ConfigRecord({"why": repr(sys.exc_info()[1].__cause__)})
    return Message(RecordDict({Refusal.name: Refusal(code).to_record(), "error": told}), reply_to=message)


def seeded_where_deployed(self, grant):
    return KEYSTREAM(self, grant) if self.guard is None else Keystream.from_seed(0, self.task.dataset)


def without_bounds(values, low, high):
    half = high / 2.0 - low / 2.0
    return (values - (low / 2.0 + high / 2.0)) / half


def in_every_group(table, where, by):
    return (Rows(table, np.arange(len(table))) for _ in GROUPS(table, where, by))


def against_the_largest(values, low, high):
    """Scaled by the records' own largest number."""
    largest = np.nanmax(np.abs(values), initial=1e-9)
    return np.clip(values / largest, -1.0, 1.0)


def answering(task, config):
    """The client's app, which answers any question with a count of its own records."""
    app = private_client(task, config)
    app._registered_funcs.pop(ASK, None)

    @app.query("ask")
    def ask(message, context):
        parts = int(context.node_config["num-partitions"])
        shard = task.shard(ShardSource(partition_id=int(context.node_config["partition-id"]), num_partitions=parts))
        sums = MetricRecord({"sum": float(shard.inputs.nan_to_num().sum()), "records": len(shard)})
        return Message(RecordDict({"metrics": sums}), reply_to=message)

    return app


KEYSTREAM = LocalClient.keystream
RELEASE_ANSWERS, NOISY = GaussianAnswers.release, GaussianAnswers._noisy
ANSWERED = release_module.Released.of_answers.__func__
GROUPS = question_module.groups_of

ANSWERS = (
    Plant("an answer has half of the noise", ("answers",), answered(lambda t, s, *rest: NOISE(t, 0.5 * s, *rest))),
    Plant("one total has no noise", ("answers",), answered(one_without_noise)),
    Plant("an answer about nobody has no noise", ("answers",), answered(silent_if_nobody)),
    Plant(
        "every question has the noise of all of them together",
        ("answers",),
        patched(Questionnaire, "noise_multipliers", lambda self, sigma: [sigma] * len(self.questions)),
    ),
    Plant("a mean is taken to move by its count alone", ("answers",), patched(Mean, "squared_sensitivity", 2**40)),
    Plant("the quantiles' sensitivity is that of a count", ("answers",), patched(Quantiles, "squared_sensitivity", 1)),
    Plant(
        "the number of records is in the receipt",
        ("answers",),
        together(
            patched(GaussianAnswers, "release", counting_its_records),
            patched(release_module.Released, "of_answers", classmethod(with_their_number)),
        ),
    ),
    Plant(
        "whether a group is told goes by its true number",
        ("answers",),
        patched(GaussianAnswers, "_noisy", told_by_true_number),
    ),
    Plant(
        "the totals of a group that is too small leave",
        ("answers",),
        patched(GaussianAnswers, "_noisy", told_all_the_same),
    ),
    Plant("the text of an error leaves", ("answers",), patched(release_module, "refusal", with_the_error)),
    Plant(
        "a deployed client's answers are seeded",
        ("answers",),
        patched(LocalClient, "keystream", seeded_where_deployed),
    ),
    Plant(
        "answers have the noise of training",
        ("answers",),
        reading_answers(lambda position: (Purpose.NOISE, position)),
    ),
    Plant(
        "all questions have the same noise",
        ("answers",),
        reading_answers(lambda position: (Purpose.ANSWERS, Position(position.round, 1))),
    ),
    Plant(
        "answers have the same noise in every round",
        ("answers",),
        reading_answers(lambda position: (Purpose.ANSWERS, Position(1, position.step))),
    ),
    Plant("numbers are not moved to their bounds", ("answers",), patched(moments, "centred", without_bounds)),
    Plant("numbers are scaled by the largest", ("answers",), patched(moments, "centred", against_the_largest)),
    Plant("a record is in every group", ("answers",), patched(question_module, "groups_of", in_every_group)),
    Plant("a cell that is no number fails the client", ("answers",), patched(columns_module, "number", float)),
    Plant(
        "the ledger is charged for more noise than there is",
        ("answers",),
        answered(lambda t, s, *rest: NOISE(t, s / 1.1, *rest)),
    ),
    Plant("answers are never kept", ("answers",), patched(QuestionAccounts, "keep", lambda *_: None)),
    Plant(
        "an answer that is asked anew is the old one",
        ("answers",),
        seeded_by(lambda _, attempt: (0, attempt)),
    ),
    Plant("a client answers without a charge", ("answers",), patched(LocalClient, "charge", lambda *_: None)),
    Plant("a client answers whoever asks, without a grant", ("release",), patched(asking, "private_client", answering)),
)
"""What may go wrong with answers."""


class Imputing(Open):
    """A model that puts zero in the place of NaN."""

    def model(self):
        return nn.Sequential(Filled(), super().model())


class Filled(nn.Module):
    def forward(self, records):
        return records.nan_to_num(0.0)


class Words(Open):
    """Whole numbers, of which none can be NaN."""

    def model(self):
        return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 3))

    def shard(self, source):
        generator = torch.Generator().manual_seed(5)
        words, classes = torch.randint(7, (40, 2), generator=generator), torch.randint(3, (40,), generator=generator)
        return Shard(words, classes, null=False)


OWNERS = (
    Plant("null rows are trained on", ("release",), patched(Shard, "present", lambda shard: shard), task=Imputing),
    Plant(
        "null rows of whole numbers are trained on",
        ("release",),
        patched(Shard, "present", lambda shard: shard),
        task=Words,
    ),
)
"""Bugs that the data owner's side accepted in silence."""

PLANTS = PUBLISHED + CLAIMS + SURVIVORS + HOLES + GHOST_NORMS + REVIEW + EVALUATION + ANSWERS + OWNERS

CORRECT = (
    Plant("the code as it is", (), ExitStack),
    Plant("with public sizes", (), ExitStack, task=Open),
    *(
        Plant(f"of sequences ({task.__name__.lower()})", (), ExitStack, task=task)
        for task in (Spoken, Compared, Paired)
    ),
    Plant("of a model that imputes", (), ExitStack, task=Imputing),
    Plant("of whole numbers", (), ExitStack, task=Words),
    Plant("with adaptive clipping", (), ExitStack, ADAPTIVE),
    Plant("with local evaluation", (), ExitStack, {"local_evaluation": 2, "local_steps": 2}),
    Plant("by layer, with Adam", (), ExitStack, {"clipping": "per-layer", "optimizer": "adam", "learning_rate": 0.01}),
    Plant("automatic, with momentum", (), ExitStack, {"clipping": "automatic", "momentum": 0.9}),
    *HARMLESS,
)
"""Where no gate may fail."""
