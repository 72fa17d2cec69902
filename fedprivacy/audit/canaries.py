"""Canaries: records whose gradients the auditor chose, so that each can be found again in a release.

A canary points in one of several orthogonal directions. A reading is a release along one of them, in clipping norms:
how many of its canaries joined, with their signs, plus noise.

| canaries | direction | what they show |
|---|---|---|
| `one_coordinate` | one coordinate; all of one sign in it | too little noise, in all layers or in one |
| `opposing` | one coordinate; very long ones against a crowd that agrees | a clip that the batch or a length bends |
| `spread` | one coordinate of each layer | a norm that is taken layer by layer |
| `dense` | +-1 in nearly all coordinates | a norm of another order |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.audit.real_client import AuditedTraining, ObservedClient, parameters_of
from fedprivacy.tasks import Shard, ShardSource, Task
from fedprivacy.training.batches import chosen_rows, layout_of
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.unit import Unit, missing_target

LONG = 10.0
"""Norm of a canary's gradient, in clipping norms: long enough to be clipped."""

LONGEST = 1e4
"""Norm of a canary that opposes others, in clipping norms."""

_MOST_RECORDS = 20_000
_MOST_JOINED = 2_000  # records in a step, on average: what a step takes
_MOST_NUMBERS = 10_000_000  # in dense records
_DIRECTIONS = 256  # of those that are not single coordinates, at most
_COPIES = 30  # of a record, at most: the more join a reading, the more it says of their length
_CANDIDATES = 64  # records, of which the one with the longest gradient is taken
_COPIES_OF_RECORD = 200
_DIVERGED = 1e20  # parameters from which on no learning rate moves them further than they are rounded


class _ReadableTask(Task):
    """A task whose gradients are the records themselves, at whatever parameters: a release shows which records joined.

    It has as many layers, of the same sizes, as the model whose training is audited, so that what forgets a layer or
    treats layers apart shows. Parameters begin at zero, where a float32 difference of parameters is exact.

    Args:
        sizes: parameters of each layer.
        relation: of the guarantee; whether the number of records is public follows from it.
        unit: of privacy.
    """

    def __init__(self, sizes: Sequence[int], relation: NeighbouringRelation, unit: Unit) -> None:
        self.sizes, self.unit = tuple(sizes), unit
        self.shard_sizes_public = relation is NeighbouringRelation.ZERO_OUT
        self.nominal_shard_size = 1

    def shard(self, source: ShardSource) -> Shard:
        """Refuse: the auditor brings the records."""
        raise NotImplementedError("canaries have no shard of their own")


class SparseCanaries(_ReadableTask):
    """A record is one coordinate of each layer, with a value: inputs [records, layers], targets the same shape."""

    name = dataset = "sparse-canaries"

    def model(self) -> nn.Module:
        """One table for each layer, a row for each coordinate."""
        return Layers(nn.Embedding(size, 1) for size in self.sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The named parameters times the values: its gradient is the values, in their places."""
        return (outputs * targets).sum(1)


class DenseCanaries(_ReadableTask):
    """A record is a vector of all coordinates: inputs [records, d]; targets count for nothing."""

    name = dataset = "dense-canaries"

    def model(self) -> nn.Module:
        """One linear map to a number for each layer."""
        return Layers(nn.Linear(size, 1, bias=False) for size in self.sizes)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The parameters times the record: its gradient is the record."""
        return outputs.sum(1)


class Layers(nn.Module):
    """Layers side by side, each of which reads its own part of a record: one column, or as many as it has weights."""

    def __init__(self, layers: Iterable[nn.Embedding | nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, records: Tensor) -> Tensor:
        """Shape [records, layers]."""
        widths = [layer.in_features if isinstance(layer, nn.Linear) else 1 for layer in self.layers]
        parts = records.split(widths, dim=1)
        return torch.cat(
            [layer(part).reshape(len(records), 1) for layer, part in zip(self.layers, parts, strict=True)], 1
        )


@dataclass(frozen=True, slots=True, eq=False)
class Canaries:
    """A shard of canaries, and how to find them in a release.

    Attributes:
        task: whose gradients they are.
        shard: the records.
        directions: of each record, a number of a reading, shape [records].
        signs: of each record along its direction, 1 or -1, shape [records].
        read: the readings of a release: shape [d] to [readings].
        crowd: which records are no canaries: what they add, one clipping norm each, is known and taken from the
            readings; shape [records], bool; None: all are canaries.
    """

    task: Task
    shard: Shard
    directions: NDArray[np.intp]
    signs: NDArray[np.float64]
    read: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    crowd: NDArray[np.bool_] | None = None

    def observe(
        self, training: AuditedTraining, steps: int, *, seed: int, device: str = "cpu"
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Yield, for each step, the readings and the signed count of canaries in each; both of shape [readings].

        Raises:
            RuntimeError: the client sent no update.
        """
        client = ObservedClient(
            self.task, self.shard, training, parameters_of(self.task.model()), seed=seed, device=device
        )
        for step in range(1, steps + 1):
            values, who = self.read(client.release(step)), client.joined_records(step)
            crowd = np.zeros(who.size, dtype=np.bool_) if self.crowd is None else self.crowd[who]
            yield values - self._signed_count(who[crowd], values.size), self._signed_count(who[~crowd], values.size)

    def _signed_count(self, records: NDArray[np.intp], readings: int) -> NDArray[np.float64]:
        """Return the signed count of some records that point along each reading."""
        counts = np.bincount(self.directions[records], weights=self.signs[records], minlength=readings)
        return counts.astype(np.float64)  # of nobody, they are integers


def one_coordinate(sizes: Sequence[int], training: AuditedTraining, rng: np.random.Generator) -> Canaries:
    """Canaries of one coordinate each, in all coordinates or, of a large model, in some of every layer.

    Args:
        sizes: parameters of each layer.
        training: for the clipping norm and the relation.
        rng: the auditor's choices.
    """
    starts, most = np.cumsum([0, *sizes[:-1]]), scaled_down(sizes, _most_records(training))
    some = np.concatenate([start + rng.permutation(n)[:m] for start, n, m in zip(starts, sizes, most, strict=True)])
    copies = _copies(some.size, training)
    # As many of each sign: where every record joins, a bound rests on coordinates that differ.
    signs = rng.permutation(np.resize([-1.0, 1.0], some.size))
    return coordinates(sizes, training, np.repeat(some, copies), np.repeat(signs, copies))


def opposing(sizes: Sequence[int], training: AuditedTraining, rng: np.random.Generator) -> Canaries:
    """Return, in some coordinates, a crowd of records that agree and as many very long ones that pull them back."""
    some = rng.permutation(sum(sizes))[:_DIRECTIONS]
    copies = max(1, _copies(some.size, training) // 2)
    where, signs = np.repeat(some, 2 * copies), np.tile(np.repeat([1.0, -1.0], copies), some.size)
    planted = coordinates(sizes, training, where, signs, np.where(signs > 0.0, LONG, LONGEST))
    return replace(planted, crowd=signs > 0.0)


def coordinates(
    sizes: Sequence[int],
    training: AuditedTraining,
    where: NDArray[np.intp],
    signs: NDArray[np.float64],
    norms: NDArray[np.float64] | float = LONG,
) -> Canaries:
    """Canaries of one coordinate each; every coordinate is a reading.

    Args:
        sizes: parameters of each layer.
        training: for the clipping norm and the relation.
        where: coordinate of each record, in all layers joined, shape [records].
        signs: 1 or -1; 0: a null record; shape [records].
        norms: of the gradients, in clipping norms, shape [records].
    """
    starts = np.cumsum([0, *sizes[:-1]])
    layer = np.searchsorted(starts, where, side="right") - 1
    places, values = np.zeros((2, where.size, len(sizes)))
    places[np.arange(where.size), layer] = where - starts[layer]
    values[np.arange(where.size), layer] = signs * norms * training.clipping_norm
    task = SparseCanaries(sizes, training.event.relation, _unit(training))
    shard = _shard(task, torch.from_numpy(places).long(), values)
    return Canaries(task, shard, where, signs, lambda release: release)


def spread(sizes: Sequence[int], training: AuditedTraining, rng: np.random.Generator) -> Canaries:
    """Canaries that touch one coordinate of every layer, each as much as the others."""
    number = min(_DIRECTIONS, *sizes)
    copies = _copies(number, training)
    places = np.stack([rng.permutation(size)[:number] for size in sizes], axis=1)
    starts, root = np.cumsum([0, *sizes[:-1]]), np.sqrt(len(sizes))
    where, signs = np.repeat(np.arange(number), copies), np.repeat(rng.choice([-1.0, 1.0], number), copies)
    values = np.repeat(signs[:, None] * LONG * training.clipping_norm / root, len(sizes), axis=1)

    def read(release: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(release[starts + places].sum(axis=1) / root)

    task = SparseCanaries(sizes, training.event.relation, _unit(training))
    return Canaries(task, _shard(task, torch.from_numpy(places[where]), values), where, signs, read)


def dense(sizes: Sequence[int], training: AuditedTraining, rng: np.random.Generator) -> Canaries:
    """Canaries of +-1 in a power of two of the coordinates, by rows of Hadamard's matrix (Sylvester 1867)."""
    dimension = sum(sizes)
    length = 2 ** (dimension.bit_length() - 1)
    number = max(1, min(_DIRECTIONS, length, _MOST_NUMBERS // (dimension * _COPIES)))
    copies = max(1, min(_copies(number, training), _MOST_NUMBERS // (dimension * number)))
    rows, columns = rng.permutation(length)[:number], rng.permutation(dimension)[:length]
    directions = np.zeros((number, dimension))
    directions[:, columns] = (1.0 - 2.0 * _odd(np.bitwise_and.outer(rows, np.arange(length)))) / np.sqrt(length)
    where, signs = np.repeat(np.arange(number), copies), np.repeat(rng.choice([-1.0, 1.0], number), copies)
    records = torch.from_numpy(directions * LONG * training.clipping_norm).float()[torch.from_numpy(where)]
    task = DenseCanaries(sizes, training.event.relation, _unit(training))
    shard = _shard(task, records * torch.from_numpy(signs).float()[:, None], np.zeros(where.size))
    return Canaries(task, shard, where, signs, lambda release: np.asarray(directions @ release))


def _odd(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return 1 for each number below 2^32 that has an odd number of ones in binary, else 0."""
    for shift in (16, 8, 4, 2, 1):
        numbers = numbers ^ (numbers >> shift)
    return numbers & 1


def scaled_down(sizes: Sequence[int], most: int = _MOST_RECORDS) -> tuple[int, ...]:
    """Sizes in proportion, of at most so many parameters together and at least one in each layer."""
    share = min(1.0, most / sum(sizes))
    return tuple(max(1, int(share * size)) for size in sizes)


def _most_records(training: AuditedTraining) -> int:
    return int(min(_MOST_RECORDS, _MOST_JOINED / training.event.sampling_rate))


def _copies(directions: int, training: AuditedTraining) -> int:
    """Number of records in each direction."""
    return max(1, min(_COPIES, _most_records(training) // directions))


def _unit(training: AuditedTraining) -> Unit:
    """Return the unit of canaries: of persons, with two rows at most. More would show nothing else, and take longer."""
    return replace(training.unit, rows=min(training.unit.rows, 2))


def _shard(task: Task, inputs: torch.Tensor, targets: NDArray[np.float64]) -> Shard:
    """Return canaries as records; where persons are, every other one has two rows that are alike."""
    aimed, most_rows = torch.from_numpy(targets).float(), task.unit.rows
    if most_rows == 1:
        return Shard(inputs, aimed, null=False)
    persons = torch.arange(len(inputs)).repeat_interleave(1 + torch.arange(len(inputs)) % most_rows)
    return Shard(inputs[persons], aimed[persons], null=False, persons=persons, most_rows=most_rows)


@dataclass(frozen=True, slots=True, eq=False)
class OwnRecord:
    """A record of a task as a canary, and its gradient at a model's parameters, by the task's own model and loss.

    Copies of it are the whole shard, and all of them pull in one direction. Plain autograd tells which, of one record
    at a time and without the gradient engine that is audited.

    Attributes:
        task: whose it is.
        record: a shard of it alone.
        parameters: of the model, by name.
        gradient: before clipping, shape [d].
    """

    task: Task
    record: Shard
    parameters: Mapping[str, NDArray[Any]]
    gradient: NDArray[np.float64]

    @classmethod
    def longest(cls, task: Task, shard: Shard, parameters: Mapping[str, NDArray[Any]]) -> OwnRecord | None:
        """Return that one of a shard's first records with the longest gradient; None if none has a finite one.

        Args:
            task: the task that gives the model and the loss.
            shard: records of the task.
            parameters: the model's, by name.
        """
        if not all(np.abs(values).max(initial=0.0) < _DIVERGED for values in parameters.values()):
            return None
        model = task.model()
        model.load_state_dict({name: torch.from_numpy(values) for name, values in parameters.items()}, strict=False)
        trained = [p for p in model.parameters() if p.requires_grad]
        best, length, layout = None, 0.0, layout_of(task)
        for place in range(min(_CANDIDATES, len(shard.inputs))):
            record = shard.of_records(shard.inputs[place : place + 1], shard.targets[place : place + 1].clone())
            batch = record.inputs, record.targets
            if layout.rows_computed < shard.rows:  # whichever rows are drawn of a person with one, it is that one
                record.targets[:, 1:] = missing_target(record.targets)
                batch = chosen_rows(record, torch.zeros(1).long(), torch.arange(layout.rows_computed).unsqueeze(0))
            inputs, targets, weights = layout.lay_out(*batch)
            loss = (weights * task.loss(model(inputs), targets)).sum()
            parts = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            gradient = torch.cat([part.flatten() for part in parts]).double().numpy()
            norm = float(np.linalg.norm(gradient))
            if length < norm < np.inf:
                best, length = cls(task, record, parameters_of(model), gradient), norm
        return best

    @property
    def norm(self) -> float:
        """Norm of the gradient. If it is below the clipping norm, the record moves a release by as much less."""
        return float(np.linalg.norm(self.gradient))

    def observe(
        self, training: AuditedTraining, steps: int, *, seed: int, device: str = "cpu"
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Yield, for each step, d readings and the number of copies in each: the first lies along the gradient.

        All copies count in the first reading, and none in the others.

        The axes are turned so that the gradient is the first one (a Householder reflection): noise that was the same
        along all axes still is.

        Raises:
            RuntimeError: the client sent no update.
        """
        copies = torch.zeros(_COPIES_OF_RECORD, dtype=torch.long)
        shard = self.record.of_records(self.record.inputs[copies], self.record.targets[copies])
        client = ObservedClient(self.task, shard, training, self.parameters, seed=seed, device=device)
        mirror = self.gradient / self.norm
        sign = -1.0 if mirror[0] > 0.0 else 1.0
        mirror[0] -= sign
        mirror /= np.linalg.norm(mirror)
        for step in range(1, steps + 1):
            release = client.release(step)
            turned = release - 2.0 * (mirror @ release) * mirror
            canaries = np.zeros(release.size)
            canaries[0] = sign * client.joined_records(step).size
            yield turned, canaries
