"""Stacks: clipped sums for many small models of one architecture at once, with one model and one batch for each client.

The arithmetic of a tiny model is faster than Python's calls. So clients are stacked: their records are laid out in
slots of `ROWS` rows, each slot of one client, and one product per layer serves all slots. A client with more records
has more slots; rows without a record are masked.

A client's release must not depend on another client's records, to the last bit: its receipt would not cover that. So
kernels always see one of few fixed shapes, whoever is in the stack, and before a stack is used it is tried on made-up
records as every method is (`fedprivacy.gradients.invariance`): a record's gradient must be the same in any place and
any company, and a slot's sum must be the same beside any other slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.gradients.clipping import Clipping
from fedprivacy.gradients.layout import sizes_up_to
from fedprivacy.gradients.models import Loss, LossGradient
from fedprivacy.gradients.pieces import Part
from fedprivacy.gradients.products import LANES
from fedprivacy.gradients.program import ChainStep, Linear, NotAChainError, steps_of
from fedprivacy.gradients.surroundings import computing_with, undisturbed

ROWS = 16
"""Number of records in a slot, which one matrix product adds. float32 holds their sum, and float64 that of the slots.
"""

MOST_PARAMETERS = 2**14
"""Maximum number of parameters of a model that is stacked: a larger one keeps a processor busy by itself."""

_IN_CACHE = 4 * 2**20
"""Maximum number of bytes of the slots of one turn."""

_FEWEST_SLOTS, _MOST_SLOTS = 32, 1024

_LONGEST_SQUARED = 2.0**128
"""Largest squared norm of a layer's inputs or output gradients that counts as finite."""

Indices = NDArray[np.int64]


@contextmanager
def alone() -> Iterator[None]:
    """Compute with one thread, without autograd, in full precision: as the stack was tried."""
    with undisturbed, torch.no_grad(), computing_with(1):
        yield


@dataclass(frozen=True, slots=True)
class Pool:
    """The records of several clients, one shard after another, and a row of zeros at the end.

    Attributes:
        inputs: shape [records + 1, ...].
        targets: shape [records + 1, ...].
        starts: each client's first row, shape [clients].
    """

    inputs: Tensor
    targets: Tensor
    starts: Indices

    @classmethod
    def of(cls, shards: Sequence[tuple[Tensor, Tensor]]) -> Pool:
        """Join inputs and targets of at least one shard; all have the same shapes and types."""
        inputs, targets = (
            [*column, column[0].new_zeros(1, *column[0].shape[1:])] for column in zip(*shards, strict=True)
        )
        starts = np.array([0, *accumulate(len(inputs) for inputs, _ in shards)], dtype=np.int64)[:-1]
        return cls(torch.cat(inputs), torch.cat(targets), starts)


@dataclass(frozen=True, slots=True)
class StackedClipped:
    """The contribution of each client's batch.

    Attributes:
        totals: sums of the clipped gradients, shape [clients, d], float64.
        squared_norms: squared norms of the records' gradients before clipping, NaN where not finite, shape [records],
            float64, in the order of the batches. Private.
    """

    totals: Tensor
    squared_norms: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """A linear layer whose weights differ from slot to slot, with its bias as an additional column of the weights.

    Attributes:
        inputs, outputs: numbers of its inputs and outputs.
        weight, bias: places of its parameters in the flat parameters.
        groups: clipping groups of weight and bias.
    """

    inputs: int
    outputs: int
    weight: slice
    bias: slice | None
    groups: tuple[int, int | None]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix, padded by zeros to multiples of a vector."""
        return self.outputs + -self.outputs % LANES, self.inputs + 1 + -(self.inputs + 1) % LANES

    def in_matrices(self, matrices: Tensor) -> list[Tensor]:
        """Return views of weight and bias in matrices [models, *shape]."""
        own = matrices[:, : self.outputs]
        weight, bias = own[..., : self.inputs], own[..., self.inputs]
        return [weight] if self.bias is None else [weight, bias]

    def in_vectors(self, vectors: Tensor) -> list[Tensor]:
        """Return views of weight and bias in flat parameters [models, d], of the same shapes."""
        weight = vectors[:, self.weight].unflatten(1, (self.outputs, self.inputs))
        return [weight] if self.bias is None else [weight, vectors[:, self.bias]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one turn at one layer: padded inputs [slots, ROWS, D], output gradients [slots, ROWS, P]."""

    layer: _Layer
    inputs: Tensor
    gradients: Tensor

    def squared_norms(self) -> list[tuple[int, Tensor]]:
        """Return the group of each parameter, and its gradients' squared norms [slots * ROWS], float64."""
        gradients = self.gradients.double().square().sum(2).view(-1)
        inputs = self.inputs[..., : self.layer.inputs].double().square().sum(2).view(-1)
        limited = gradients.where(torch.maximum(inputs, gradients) <= _LONGEST_SQUARED, math.nan)
        weight, bias = self.layer.groups
        return [(weight, inputs * limited)] + ([] if bias is None else [(bias, limited)])

    def sums(self, scales: Tensor, usable: Tensor) -> Tensor:
        """Sum each slot's usable rows, scaled by group [groups, slots, ROWS]: [slots, *shape]."""
        weight, bias = self.layer.groups
        scales, kept = scales.to(self.inputs.dtype).unsqueeze(3), usable.unsqueeze(2)
        gradients = torch.where(kept, self.gradients, 0.0)
        inputs = torch.where(kept, self.inputs, 0.0)
        if bias is None or bias == weight:
            return torch.bmm(gradients.mul_(scales[weight]).transpose(1, 2), inputs)
        column = inputs[..., self.layer.inputs :].clone()
        inputs.mul_(scales[weight])
        inputs[..., self.layer.inputs :] = column.mul_(scales[bias])
        return torch.bmm(gradients.transpose(1, 2), inputs)


class Stack:
    """Clipped sums of the gradients of models that differ in their parameters alone.

    Formal guarantee: that of `GradientEngine.clipped_sum`, for each client by itself, and no client's sum depends on
    what else is in the stack, bit for bit, as far as `fedprivacy.gradients.stack_check` can tell. A slot's sum rounds
    by at most (`ROWS` + 3) 2^-24 `ROWS` C (Higham 2002, section 3.1), far less than a block of
    `fedprivacy.gradients.pieces.Sums`, and a record that is taken out changes two slots.
    """

    def __init__(self, model: nn.Module, loss: Loss, clipping: Clipping) -> None:
        """Lay out a model for stacking; it is not changed.

        Raises:
            NotAChainError: it is not a chain of linear layers and functions without parameters, or is too large.
            Exception: any error of torch.fx on a model that it cannot trace.
        """
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.dimension = sum(p.numel() for p in trained.values())
        if self.dimension > MOST_PARAMETERS:
            raise NotAChainError(f"{self.dimension} parameters are too many to be stacked")
        if any(p.dtype != torch.float32 or p.is_cuda for p in trained.values()):
            raise NotAChainError("parameters that are not float32, or on a GPU")
        indices = {p: Part(place) for place, p in enumerate(trained.values())}
        self._steps = steps_of(model, indices)
        groups = clipping.groups(list(trained))
        self._groups = max(groups) + 1
        self._clipping = clipping
        self._layers = _layers(self._steps, [p.shape for p in trained.values()], groups)
        self._gradient_of = LossGradient(loss)
        each = sum(math.prod(layer.shape) for layer in self._layers.values()) * 24
        most = min(max(_IN_CACHE // each, _FEWEST_SLOTS), _MOST_SLOTS)
        self.sizes = sizes_up_to(1 << (most.bit_length() - 1), _FEWEST_SLOTS)

    def clip(
        self, positions: Tensor, pool: Pool, batches: Sequence[Indices], clipping_norms: NDArray[np.float64]
    ) -> StackedClipped:
        """Compute the clipped sum of each client's batch under the client's own parameters.

        Args:
            positions: each client's parameters, flat, in the order of `trainable_parameters`, shape [clients, d].
            pool: the clients' records.
            batches: row numbers of each client's batch in its own shard; may be empty.
            clipping_norms: C of each client, shape [clients].

        Raises:
            LossShapeError: the loss is not one value for each record.
        """
        slots = _Slots.of(pool, batches, self.sizes)
        totals = [
            positions.new_zeros(len(batches), *layer.shape, dtype=torch.float64) for layer in self._layers.values()
        ]
        squared = torch.full((len(slots.owners) * ROWS,), math.nan, dtype=torch.float64)
        matrices, norms = self.matrices(positions), torch.from_numpy(clipping_norms)
        with alone():
            for start, stop in slots.turns:
                owners, rows = slots.owners[start:stop], slots.rows[start:stop].reshape(-1)
                own = [matrix.index_select(0, owners) for matrix in matrices]
                counted = rows < len(pool.inputs) - 1
                measured, whole = self.measure(
                    own, pool.inputs.index_select(0, rows), pool.targets.index_select(0, rows), counted
                )
                usable = counted & (whole.sum(0) <= _LONGEST_SQUARED)
                scales = self.scales(whole, usable, norms.index_select(0, owners))
                for total, at in zip(totals, measured, strict=True):
                    total.index_add_(0, owners, at.sums(scales, usable.view(-1, ROWS)).double())
                squared[start * ROWS : stop * ROWS] = whole.sum(0).where(usable, math.nan)
        return StackedClipped(self.flat(totals), squared[slots.filled])

    def matrices(self, positions: Tensor) -> list[Tensor]:
        """Lay out each layer's matrices of models [models, d]: [models, *shape]."""
        matrices = [positions.new_zeros(len(positions), *layer.shape) for layer in self._layers.values()]
        for layer, matrix in zip(self._layers.values(), matrices, strict=True):
            for entries, values in zip(layer.in_matrices(matrix), layer.in_vectors(positions), strict=True):
                entries.copy_(values)
        return matrices

    def scales(self, squared_norms: Tensor, usable: Tensor, clipping_norms: Tensor) -> Tensor:
        """Compute factors [groups, slots, ROWS] for squared norms [groups, slots * ROWS] and each slot's C; 0: no
        record.
        """
        finite = squared_norms.where(usable, 1.0)
        scales = self._clipping.scales(finite, clipping_norms.repeat_interleave(ROWS))
        return scales.where(usable, 0.0).view(self._groups, -1, ROWS)

    def measure(
        self, matrices: Sequence[Tensor], inputs: Tensor, targets: Tensor, counted: Tensor
    ) -> tuple[list[_Rows], Tensor]:
        """Compute one turn: every layer's rows, and the squared norms [groups, slots * ROWS] of the rows' gradients.

        The norm of a row whose loss cannot be computed is NaN.

        Args:
            matrices: matrices of each layer, one for each slot.
            inputs, targets: rows, shape [slots * ROWS, ...].
            counted: mask of the rows that are records, bool.
        """
        outputs, kept = self._forward(matrices, inputs)
        gradient, computable = self._at_outputs(outputs, targets, counted)
        rows = self._backward(matrices, kept, gradient)
        squared = torch.zeros(self._groups, len(inputs), dtype=torch.float64)
        for at in rows:
            for group, norms in at.squared_norms():
                squared[group] += norms
        return rows, squared if computable is None else squared.where(computable, math.nan)

    def _forward(self, matrices: Sequence[Tensor], values: Tensor) -> tuple[Tensor, list[Any]]:
        kept: list[Any] = []
        own = iter(matrices)
        for number, step in enumerate(self._steps):
            layer = self._layers.get(number)
            if layer is None:
                values, needed = step.operation.forward(values)
            else:
                needed = _with_ones(values, layer)
                values = torch.bmm(needed, next(own).transpose(1, 2))[..., : layer.outputs].reshape(len(values), -1)
            kept.append(needed)
        return values, kept

    def _backward(self, matrices: Sequence[Tensor], kept: list[Any], gradient: Tensor) -> list[_Rows]:
        rows: list[_Rows] = []
        own = list(matrices)
        for number in reversed(range(len(self._steps))):
            layer, needed = self._layers.get(number), kept.pop()
            if layer is not None:
                padded = gradient.new_zeros(len(needed), ROWS, layer.shape[0])
                padded[..., : layer.outputs] = gradient.view(-1, ROWS, layer.outputs)
                rows.append(_Rows(layer, needed, padded))
            if not self._steps[number].goes_on:
                break
            if layer is None:
                gradient = self._steps[number].operation.backward(needed, gradient)
            else:
                back = torch.bmm(padded, own.pop())
                gradient = back[..., : layer.inputs].reshape(-1, layer.inputs)
        return rows[::-1]

    def _at_outputs(self, outputs: Tensor, targets: Tensor, counted: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the gradient of each row's loss at its output, and the mask of computable rows; None: all."""
        try:
            return self._gradient_of(outputs, targets), None
        except Exception:
            computable = self._computable(outputs, targets, counted)
            return self._gradient_of(*_without(outputs, targets, computable)), computable

    def _computable(self, outputs: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
        """Return which of the candidates, bool [rows], do not make the loss fail, by repeated halving."""
        try:
            self._gradient_of(*_without(outputs, targets, candidates))
        except Exception:
            places = candidates.nonzero().squeeze(1)
            if len(places) <= 1:
                return torch.zeros_like(candidates)
            first = candidates.clone().index_fill_(0, places[len(places) // 2 :], False)
            return self._computable(outputs, targets, first) | self._computable(outputs, targets, candidates & ~first)
        return candidates

    def flat(self, totals: Sequence[Tensor]) -> Tensor:
        """Return the layers' sums [clients, *shape] as flat vectors, [clients, d]."""
        vectors = totals[0].new_empty(len(totals[0]), self.dimension)
        for layer, total in zip(self._layers.values(), totals, strict=True):
            for values, entries in zip(layer.in_vectors(vectors), layer.in_matrices(total), strict=True):
                values.copy_(entries)
        return vectors


@dataclass(frozen=True, slots=True)
class _Slots:
    """Layout of records in slots.

    Attributes:
        owners: client of each slot, shape [slots].
        rows: rows of the pool, shape [slots, ROWS]; the pool's last row where there is no record.
        filled: places of the records in the flattened rows, in the order of the batches.
        turns: (first, last + 1) of the slots that are computed at a time.
    """

    owners: Tensor
    rows: Tensor
    filled: Tensor
    turns: list[tuple[int, int]]

    @classmethod
    def of(cls, pool: Pool, batches: Sequence[Indices], sizes: Sequence[int]) -> _Slots:
        counts = np.array([len(batch) for batch in batches], dtype=np.int64)
        slots = -(-counts // ROWS)
        turns = list(_turns(int(slots.sum()), sizes))
        owners = np.zeros(turns[-1][1] if turns else 0, dtype=np.int64)
        owners[: slots.sum()] = np.repeat(np.arange(len(batches)), slots)
        first_slots, first_records = np.cumsum(slots) - slots, np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(first_records, counts)
        filled = np.repeat(first_slots, counts) * ROWS + within
        rows = np.full(len(owners) * ROWS, len(pool.inputs) - 1, dtype=np.int64)
        if len(filled):
            rows[filled] = np.concatenate(batches) + np.repeat(pool.starts, counts)
        return cls(torch.from_numpy(owners), torch.from_numpy(rows.reshape(-1, ROWS)), torch.from_numpy(filled), turns)


def _turns(slots: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split slots into turns: the largest size as often as it is filled, then the smallest that holds the rest."""
    start = 0
    while start < slots:
        left = slots - start
        size = sizes[0] if left >= sizes[0] else min(size for size in sizes if size >= left)
        yield start, start + size
        start += size


def _with_ones(values: Tensor, layer: _Layer) -> Tensor:
    """Put a layer's inputs [rows, d] into slots, with a one for the bias and zeros up to a multiple of a vector."""
    if values.dim() != 2:
        raise NotAChainError("a layer that reads several positions of a record")
    padded = values.new_zeros(len(values) // ROWS, ROWS, layer.shape[1])
    padded[..., : layer.inputs] = values.view(-1, ROWS, layer.inputs)
    padded[..., layer.inputs] = 1.0
    return padded


def _without(outputs: Tensor, targets: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Set outputs and targets to zero in rows that are not kept."""
    rows = (t.clone() for t in (outputs, targets))
    return tuple(row.masked_fill_(~kept.view(-1, *[1] * (row.dim() - 1)), 0) for row in rows)  # type: ignore[return-value]


def _layers(steps: Sequence[ChainStep], shapes: Sequence[torch.Size], groups: Sequence[int]) -> dict[int, _Layer]:
    """Lay out the stacked layers, by the numbers of their steps."""
    places = [slice(*ends) for ends in pairwise([0, *accumulate(shape.numel() for shape in shapes)])]
    layers: dict[int, _Layer] = {}
    for number, step in enumerate(steps):
        if step.parts:
            if not isinstance(step.operation, Linear) or "weight" not in step.parts:
                raise NotAChainError("a trained layer that is not linear, or whose weights are frozen")
            layers[number] = _layer(step, shapes, groups, places)
    used = [part.place for step in steps for part in step.parts.values()]
    if sorted(used) != list(range(len(shapes))):
        raise NotAChainError("a parameter belongs to no layer of the chain, or to several")
    return layers


def _layer(step: ChainStep, shapes: Sequence[torch.Size], groups: Sequence[int], places: Sequence[slice]) -> _Layer:
    weight, bias = step.parts["weight"].place, step.parts.get("bias")
    operation = step.operation
    assert isinstance(operation, Linear)
    if bias is None and operation.layer.bias is not None:
        raise NotAChainError("a layer whose bias is frozen")
    outputs, inputs = shapes[weight]
    own = groups[weight], None if bias is None else groups[bias.place]
    return _Layer(inputs, outputs, places[weight], None if bias is None else places[bias.place], own)
