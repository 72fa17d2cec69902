"""Bugs in the code that really runs, planted one at a time: the auditor's gates must catch each, whatever the seed.

A plant is a small patch of the client's own path (`fedprivacy.training`, `gradients`, `flower.client`, the books). Its
meaning is what counts: when the code has moved on, plant the same meaning in today's code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from fedprivacy.audit.gates.audited import Audited, Effort
from fedprivacy.gradients import GradientEngine, PerLayerClipping
from fedprivacy.gradients.engine import Clipped
from fedprivacy.runs.plan import RunPlan
from fedprivacy.tasks import Recipe, Shard, Task
from fedprivacy.training import adaptive as adaptive_module
from fedprivacy.training import mechanisms
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.keystream import Keystream, Position, Purpose
from fedprivacy.training.mechanisms import SampledGaussianSum

Planted = Callable[[], AbstractContextManager[None]]

CLIP, RELEASE, TRAIN = GradientEngine.clip, DPSGD._release, DPSGD.train
SUM, SAMPLE, NOISE, READER = (
    SampledGaussianSum.release,
    mechanisms.poisson_sample,
    mechanisms.add_lattice_noise,
    Keystream.reader,
)
"""The code as it is."""


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
        ends = np.cumsum(NOW["sizes"])
        start, stop = (0, ends[0]) if layer == 0 else (ends[-2], ends[-1])
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
    order = np.random.default_rng([*keystream.key, position.round, epoch]).permutation(records)
    return order[turn * size : (turn + 1) * size]


def fixed_size(rate, records, keystream, position):
    order = np.random.default_rng([*keystream.key, position.round, position.step]).permutation(records)
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

ADAPTIVE = (Plant("adaptive clipping", (), ExitStack, {"clipping": "adaptive"}),Plant("correct", (), ExitStack, {}),Plant("public sizes", (), ExitStack, {}, Open),Plant("per layer", (), ExitStack, {"clipping": "per-layer", "optimizer":"adam","learning_rate":0.01}),Plant("automatic", (), ExitStack, {"clipping": "automatic","momentum":0.9}))
