"""DP-SGD on one shard, without a federation: a model, a loss, records and a budget."""

from __future__ import annotations

import math
from collections.abc import Sized
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fedprivacy.accounting import noise_multiplier, pld
from fedprivacy.gradients import GradientEngine, Loss, check_model, check_on_blank
from fedprivacy.gradients.methods.obstacle import warn_of
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.tasks.augmentation import LARGEST_MULTIPLICITY, Augmentation
from fedprivacy.tasks.task import Shard, check_null, holding_nan
from fedprivacy.training.adaptive import ADAPTIVE, CLIPPINGS
from fedprivacy.training.augment import Views
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.optimizers import build_optimizer
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Records = Shard | tuple[Tensor, Tensor]
"""Inputs, shape [records, ...], and targets, shape [records, ...]."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model and its privacy cost.

    Attributes:
        model: trained model, ready to predict.
        epsilon: privacy loss at `delta`, in nats.
        delta: delta of the budget.
        event: event of one step: sampling rate, noise multiplier in clipping norms, and the neighbouring relation.
        steps: number of executed steps.
    """

    model: nn.Module
    epsilon: float
    delta: float
    event: PoissonSampledGaussian
    steps: int


def train(
    model: nn.Module,
    loss: Loss,
    data: Records | Dataset[Any],
    *,
    prototype: tuple[Tensor, Tensor] | None = None,
    epsilon: float,
    delta: float,
    steps: int,
    sampling_rate: float,
    batch_size: float | None = None,
    size_public: bool = False,
    clipping_norm: float = 1.0,
    clipping: str = "flat",
    learning_rate: float = 0.1,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    augmentation: Augmentation | None = None,
    augmentation_multiplicity: int = 8,
    seed: int | None = None,
) -> Trained:
    """Train a copy of a model with DP-SGD on records that lie in one place.

    Formal guarantee: the returned value is (epsilon, delta)-differentially private for a record, even against an
    observer of every step. The number of records is private: neighbours differ in the presence of one record
    (add-or-remove-one). With `size_public` the number is known to everybody, and in neighbours one record is replaced
    by a null record (zero-out). It holds for arguments that were chosen without looking at the records. Batches are
    Poisson samples, and the noise is the least that the budget allows.

    >>> import fedprivacy as fp, torch
    >>> sides = torch.arange(400) % 2
    >>> data = torch.randn(400, 2) + 3.0 * sides[:, None], sides
    >>> loss = torch.nn.CrossEntropyLoss(reduction="none")
    >>> trained = fp.train(
    ...     torch.nn.Linear(2, 2), loss, data, epsilon=3.0, delta=1e-4, steps=30, sampling_rate=0.25, batch_size=100
    ... )
    >>> trained.epsilon <= 3.0, trained.steps, str(trained.event.relation)
    (True, 30, 'add-or-remove-one')

    Args:
        model: its layers must not mix records (no BatchNorm). It is not changed. A layer in `eval()` is trained so:
            dropout does nothing there, and BatchNorm keeps pretrained statistics.
        loss: (outputs, targets) -> one loss for each record, shape [batch], for example with reduction="none".
        data: a `Shard`; or inputs and targets, shape [records, ...] each; or a `torch.utils.data.Dataset` of pairs.
        prototype: a made-up pair, input and target of one record, whose shapes and types all pairs of a `Dataset` have.
            A pair of other shapes or types, or one that cannot be read, is a null row. The prototype must be given with
            a `Dataset` and chosen without looking at the records: if types were inferred from all records, one record
            could change every other.
        epsilon: maximum privacy loss, in nats.
        delta: delta of that budget, in (0, 1), well below 1 / number of records.
        steps: number of steps, at least 1.
        sampling_rate: q, probability with which each record joins a step, in (0, 1].
        batch_size: expected batch size, by which the noisy sums are divided: q times a public guess of how many records
            there are. None: q times their number, where that is public.
        size_public: whether the number of records is public.
        clipping_norm: C, bound on the Euclidean norm of one record's gradient; with adaptive clipping, of the first
            step.
        clipping: "flat", "per-layer", "automatic" or "adaptive". With "adaptive", C follows the median norm of the
            gradients, which is read from the same noisy sum: it costs no epsilon, but half a percent more noise.
        learning_rate: step size.
        optimizer: "sgd", "adam" or "adamw".
        momentum: momentum of sgd, in [0, 1).
        weight_decay: weight decay of sgd and adamw.
        augmentation: function that makes random views of a record; its gradient is averaged over them before it is
            clipped (De et al. 2022), which costs no epsilon. None: the records as they are.
        augmentation_multiplicity: number of views, from 1 to 256; the work grows in proportion.
        seed: seed that makes the training repeatable but gives no protection against anybody who knows it; two
            trainings with one seed share their noise, so that their losses do not add up. None: secret randomness,
            which is not stored.

    Raises:
        UnsupportedModelError: the model mixes records, or cannot be trained with DP-SGD for another reason.
        LossShapeError: the loss is not one value for each record.
        ValueError: an argument is out of range, the augmentation cannot make views of such records, no noise meets the
            budget, a `Dataset` is given without a prototype, or `size_public` is set for whole numbers without a
            statement of the null rows. No record has been read.
    """
    relation = NeighbouringRelation.ZERO_OUT if size_public else NeighbouringRelation.ADD_OR_REMOVE_ONE
    model = deepcopy(model)
    check_model(model)
    shard = _shard(data, prototype).present().to(next(model.parameters()).device)
    check_null(shard, relation)
    check_on_blank(model, loss, shard.inputs[:0], shard.targets[:0])
    for name, value in (("learning_rate", learning_rate), ("batch_size", 1.0 if batch_size is None else batch_size)):
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} is {value}; choose a positive number.")
    if not 1 <= augmentation_multiplicity <= LARGEST_MULTIPLICITY:
        raise ValueError(
            f"augmentation_multiplicity is {augmentation_multiplicity}; choose a number from 1 to "
            f"{LARGEST_MULTIPLICITY}."
        )
    if clipping not in CLIPPINGS:
        raise ValueError(f"clipping is '{clipping}'; choose one of {', '.join(CLIPPINGS)}.")
    budget = PrivacyBudget(epsilon, delta)
    noise = noise_multiplier(budget, sampling_rate, steps, relation)
    event = PoissonSampledGaussian(sampling_rate, noise, relation)
    adaptive = ADAPTIVE[clipping]() if clipping in ADAPTIVE else None
    if adaptive is not None:  # with the count, a record's part of the noisy sum is larger than C
        _ = SampledGaussianSum(event, adaptive.sensitivity(clipping_norm))
    views = None if augmentation is None else Views(augmentation, augmentation_multiplicity, shard.inputs[:0])
    dpsgd = DPSGD(
        SampledGaussianSum(event, clipping_norm),
        _divisor(batch_size, sampling_rate * len(shard) if size_public else None),
        build_optimizer(optimizer, learning_rate, momentum=momentum, weight_decay=weight_decay),
        adaptive=adaptive,
        views=views,
    )
    keystream = Keystream.secret() if seed is None else Keystream.from_seed(seed, "single")
    engine = GradientEngine(model, loss, CLIPPINGS[clipping](), views=1 if views is None else views.multiplicity)
    engine.prepare(shard.inputs[:0], shard.targets[:0])
    warn_of(engine.method, engine.obstacle)
    update = dpsgd.train(engine, shard, steps=steps, round=1, keystream=keystream)
    spent = pld.epsilon({update.event: update.steps}, delta)
    return Trained(model.eval(), spent, delta, update.event, update.steps)


def _divisor(batch_size: float | None, public: float | None) -> float:
    """Return the public number by which noisy sums are divided."""
    if batch_size is None and public is None:
        raise ValueError(
            "batch_size is open, and how many records there are is private; give sampling_rate times a public guess of "
            "it, or say size_public=True."
        )
    return max(public or 0.0, 1.0) if batch_size is None else batch_size


def _shard(data: Records | Dataset[Any], prototype: tuple[Tensor, Tensor] | None) -> Shard:
    """Return the records as tensors."""
    if isinstance(data, Shard):
        return data
    if isinstance(data, tuple):
        return Shard(*data)
    if not isinstance(data, Sized):
        raise ValueError("the data set has no length; give one that has, or inputs and targets.")
    if prototype is None:
        raise ValueError(
            "prototype is open, and the types of a Dataset's records would be found out from all of them: give one "
            "made-up pair of their shapes and types, for example prototype=(torch.zeros(3), torch.tensor(0))."
        )
    inputs, targets = (like.new_zeros(len(data), *like.shape) for like in prototype)
    unreadable = torch.tensor([not _copied(cast(Any, data), place, inputs, targets) for place in range(len(data))])
    unreadable = unreadable.bool()  # of nobody, too
    return Shard(inputs, targets, null=unreadable | holding_nan(inputs) if inputs.is_floating_point() else unreadable)


def _copied(data: Any, place: int, inputs: Tensor, targets: Tensor) -> bool:
    """Copy one record of a data set to its place; return False if it is unreadable or not of the prototype's kind."""
    try:
        values = [torch.as_tensor(value).detach() for value in data[place]]
        for value, rows in zip(values, (inputs, targets), strict=True):
            plain = type(value) is Tensor and value.layout is torch.strided and value.shape == rows.shape[1:]
            if not (plain and torch.can_cast(value.dtype, rows.dtype)):
                return False
        for value, rows in zip(values, (inputs, targets), strict=True):
            rows[place].copy_(value)
    except Exception:  # any error that a record causes in the data set counts against that record alone
        return False
    return True
