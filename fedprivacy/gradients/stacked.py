"""Stacks: clipped sums for many small models of one architecture at once, with one model and one batch for each client.

The arithmetic of a tiny model is faster than Python's calls, and on a GPU that of most models is faster than the
launches of its kernels. So clients are stacked: their records are laid out in slots of `ROWS` rows, each slot of one
client, and one product per layer serves all slots. A client with more records has more slots; rows without a record are
masked. A convolution is a product, too: of the patches under its kernel, one for each position of the output.

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
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from fedprivacy.gradients.clipping import Clipping
from fedprivacy.gradients.layout import sizes_up_to
from fedprivacy.gradients.models import Loss, LossGradient
from fedprivacy.gradients.pieces import Part, power_of_two, row_norms
from fedprivacy.gradients.products import LANES, on_gpu, zero_on
from fedprivacy.gradients.program import ChainStep, Convolve, Linear, NotAChainError, steps_of
from fedprivacy.gradients.surroundings import computing_with, undisturbed
from fedprivacy.gradients.watch import checked_lookups

ROWS = 16
"""Number of records in a slot, which one matrix product adds. float32 holds their sum, and float64 that of the slots.
"""

_MOST_PARAMETERS = 2**14
"""Maximum number of parameters of a model that is stacked on a CPU: a larger one keeps a processor busy by itself."""

_IN_CACHE = 4 * 2**20
"""Maximum number of bytes of the slots of one turn on a CPU."""

BYTES_ON_GPU = 2**33
"""Maximum number of bytes of the slots of one turn on a GPU, which needs many at a time."""

_FEWEST_SLOTS, _MOST_SLOTS, _MOST_ON_GPU = 32, 1024, 2048

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
        inputs, outputs: numbers of columns and rows of the weights.
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

    @property
    def slot_bytes(self) -> int:
        """Number of bytes that a slot takes for its matrix and sum, and for gradients that are written."""
        return 24 * math.prod(self.shape)

    def in_matrices(self, matrices: Tensor) -> list[Tensor]:
        """Return views of weight and bias in matrices [models, *shape]."""
        own = matrices[:, : self.outputs]
        weight, bias = own[..., : self.inputs], own[..., self.inputs]
        return [weight] if self.bias is None else [weight, bias]

    def in_vectors(self, vectors: Tensor) -> list[Tensor]:
        """Return views of weight and bias in flat parameters [models, d], of the same shapes."""
        weight = vectors[:, self.weight].unflatten(1, (self.outputs, self.inputs))
        return [weight] if self.bias is None else [weight, vectors[:, self.bias]]

    def factors(self, values: Tensor) -> Tensor:
        """Put the layer's inputs [rows, d] into slots, with a one for the bias and zeros up to a multiple of a vector.

        Returns:
            What each slot's matrix is multiplied by, [slots, ROWS, D].
        """
        if values.dim() != 2:
            raise NotAChainError("a layer that reads several positions of a record")
        padded = values.new_zeros(len(values) // ROWS, ROWS, self.shape[1])
        padded[..., : self.inputs] = values.view(-1, ROWS, self.inputs)
        padded[..., self.inputs] = 1.0
        return padded

    def outputs_of(self, products: Tensor, factors: Tensor) -> Tensor:
        """Return the layer's outputs [rows, p], given the products of its matrices and the inputs' factors."""
        return products[..., : self.outputs].reshape(-1, self.outputs)

    def padded(self, gradient: Tensor) -> Tensor:
        """Put the gradient of the outputs into slots, [slots, ROWS, P]."""
        padded = gradient.new_zeros(len(gradient) // ROWS, ROWS, self.shape[0])
        padded[..., : self.outputs] = gradient.view(-1, ROWS, self.outputs)
        return padded

    def inputs_of(self, products: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient of inputs of this shape, given the products of the matrices and the padded gradient."""
        return products[..., : self.inputs].reshape(shape)

    def rows(self, factors: Tensor, gradients: Tensor) -> _Rows:
        """Return the rows' gradients."""
        return _Factors(self, factors, gradients)


@dataclass(frozen=True, slots=True)
class _Convolution(_Layer):
    """A convolution: its inputs are patches, each for a position of the output.

    It is stacked on a GPU alone. On one core and 28 x 28 pixels a client's own engine is faster, up to four times; for
    8 x 8 pixels the stack is, up to seven times, but not where batches have a thousand records.

    Attributes:
        layer: its kernel and stride.
        padding: number of rows and columns of zeros on each side.
    """

    layer: nn.Conv2d
    padding: tuple[int, ...]

    @property
    def slot_bytes(self) -> int:
        return (24 + 12 * ROWS) * math.prod(self.shape)

    def factors(self, values: Tensor) -> Tensor:
        """Copy the patches of images, [rows, height, width, D]."""
        (above, left), layer = self.padding, self.layer
        framed = functional.pad(values, (left, left, above, above))
        windows = framed.unfold(2, layer.kernel_size[0], layer.stride[0])
        patches = windows.unfold(3, layer.kernel_size[1], layer.stride[1]).permute(0, 2, 3, 1, 4, 5)
        padded = values.new_zeros(*patches.shape[:3], self.shape[1])
        padded[..., : self.inputs].unflatten(3, patches.shape[3:]).copy_(patches)
        if self.bias is not None:
            padded[..., self.inputs] = 1.0
        return padded

    def outputs_of(self, products: Tensor, factors: Tensor) -> Tensor:
        images = products[..., : self.outputs].reshape(*factors.shape[:3], self.outputs)
        return images.permute(0, 3, 1, 2).contiguous()

    def padded(self, gradient: Tensor) -> Tensor:
        records, _, *positions = gradient.shape
        padded = gradient.new_zeros(records, *positions, self.shape[0])
        padded[..., : self.outputs] = gradient.permute(0, 2, 3, 1)
        return padded

    def inputs_of(self, products: Tensor, shape: torch.Size) -> Tensor:
        patches = products[..., : self.inputs].reshape(shape[0], -1, self.inputs).transpose(1, 2)
        return functional.fold(patches, shape[2:], self.layer.kernel_size, 1, self.padding, self.layer.stride)

    def rows(self, factors: Tensor, gradients: Tensor) -> _Rows:
        return _Written(self, torch.bmm(gradients.flatten(1, 2).transpose(1, 2), factors.flatten(1, 2)))


@dataclass(frozen=True, slots=True)
class _Factors:
    """Gradients of a turn's rows as factors: padded inputs [slots, ROWS, D] and output gradients [slots, ROWS, P]."""

    layer: _Layer
    inputs: Tensor
    gradients: Tensor

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The tensors [slots, ROWS, ...] of which the gradients are made, each row's of its own row."""
        return self.inputs, self.gradients

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
        gradients = torch.where(kept, self.gradients, zero_on(kept.device))
        inputs = torch.where(kept, self.inputs, zero_on(kept.device))
        if bias is None or bias == weight:
            return torch.bmm(gradients.mul_(scales[weight]).transpose(1, 2), inputs)
        column = inputs[..., self.layer.inputs :].clone()
        inputs.mul_(scales[weight])
        inputs[..., self.layer.inputs :] = column.mul_(scales[bias])
        return torch.bmm(gradients.transpose(1, 2), inputs)


@dataclass(frozen=True, slots=True)
class _Written:
    """Gradients written out, [slots * ROWS, *shape]: sums over positions may cancel, and a norm is that of its sum."""

    layer: _Layer
    gradients: Tensor

    @property
    def sources(self) -> tuple[Tensor, ...]:
        return (self.gradients.unflatten(0, (-1, ROWS)),)

    def squared_norms(self) -> list[tuple[int, Tensor]]:
        return [(self.layer.groups[0], row_norms(self.gradients).double().square_())]

    def sums(self, scales: Tensor, usable: Tensor) -> Tensor:
        kept = torch.where(usable.unsqueeze(2), self.gradients.view(*usable.shape, -1), zero_on(usable.device))
        weights = scales[self.layer.groups[0]].to(kept.dtype).unsqueeze(1)
        return torch.bmm(weights, kept).view(-1, *self.layer.shape)


_Rows = _Factors | _Written


class Stack:
    """Clipped sums of the gradients of models that differ in their parameters alone.

    Formal guarantee: that of `GradientEngine.clipped_sum`, for each client by itself, and no client's sum depends on
    what else is in the stack, bit for bit, as far as `fedprivacy.gradients.stack_check` can tell. A slot's sum rounds
    by at most (`ROWS` + 3) 2^-24 `ROWS` C (Higham 2002, section 3.1), far less than a block of
    `fedprivacy.gradients.pieces.Sums`, and a record that is taken out changes two slots.

    Attributes:
        dimension: number of parameters.
        sizes: numbers of slots of a turn, the largest first; the check leaves out those that have other bits.
    """

    def __init__(self, model: nn.Module, loss: Loss, clipping: Clipping, inputs: Tensor) -> None:
        """Lay out a model for stacking; it is not changed.

        Args:
            model, loss, clipping: as for `GradientEngine`.
            inputs: a tensor of the records' shape and type, [any, ...], on their device; no value is read.

        Raises:
            NotAChainError: it is not a chain of stacked layers and functions without parameters, or is too large.
            Exception: any error of torch.fx on a model that it cannot trace, or of the model on a record of zeros.
        """
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.dimension, gpu = sum(p.numel() for p in trained.values()), on_gpu(inputs)
        if self.dimension > _MOST_PARAMETERS and not gpu:
            raise NotAChainError(f"{self.dimension} parameters are too many to be stacked")
        if any(p.dtype != torch.float32 for p in trained.values()):
            raise NotAChainError("parameters that are not float32")
        indices = {p: Part(place) for place, p in enumerate(trained.values())}
        self._steps = steps_of(model, indices)
        groups = clipping.groups(list(trained))
        self._groups = max(groups) + 1
        self._clipping = clipping
        self._layers = _layers(self._steps, [p.shape for p in trained.values()], groups)
        if not gpu and any(isinstance(layer, _Convolution) for layer in self._layers.values()):
            raise NotAChainError("convolutions are not stacked on a CPU")
        self._gradient_of = LossGradient(loss)
        each = self._bytes_of_a_slot(inputs)
        if gpu and each * _FEWEST_SLOTS > BYTES_ON_GPU:
            raise NotAChainError(f"{each} bytes of a slot are too many")
        most = min(BYTES_ON_GPU // each, _MOST_ON_GPU) if gpu else min(_IN_CACHE // each, _MOST_SLOTS)
        self.sizes = sizes_up_to(power_of_two(max(most, _FEWEST_SLOTS)), _FEWEST_SLOTS)

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
        squared = positions.new_full((len(slots.owners) * ROWS,), math.nan, dtype=torch.float64)
        matrices, norms = self.matrices(positions), torch.from_numpy(clipping_norms).to(positions.device)
        with alone():
            for ends in slots.turns:
                start, stop = ends[0], ends[-1]
                owners, rows = slots.owners[start:stop], slots.rows[start:stop].reshape(-1)
                own = [matrix.index_select(0, owners) for matrix in matrices]
                counted = rows < len(pool.inputs) - 1
                measured, whole = self.measure(
                    own, pool.inputs.index_select(0, rows), pool.targets.index_select(0, rows), counted
                )
                usable = counted & (whole.sum(0) <= _LONGEST_SQUARED)
                scales = self.scales(whole, usable, norms.index_select(0, owners))
                for total, at in zip(totals, measured, strict=True):
                    sums = at.sums(scales, usable.view(-1, ROWS)).double()
                    for first, last in pairwise(ends):
                        total.index_add_(0, slots.owners[first:last], sums[first - start : last - start])
                squared[start * ROWS : stop * ROWS] = whole.sum(0).where(usable, math.nan)
        return StackedClipped(self.flat(totals), squared.index_select(0, slots.filled))

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
        squared = inputs.new_zeros(self._groups, len(inputs), dtype=torch.float64)
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
                factors = layer.factors(values)
                needed = factors, values.shape
                values = layer.outputs_of(_by_slot(factors, next(own).transpose(1, 2)), factors)
            kept.append(needed)
        return values, kept

    def _backward(self, matrices: Sequence[Tensor], kept: list[Any], gradient: Tensor) -> list[_Rows]:
        rows: list[_Rows] = []
        own = list(matrices)
        for number in reversed(range(len(self._steps))):
            layer, needed = self._layers.get(number), kept.pop()
            if layer is not None:
                (factors, shape), padded = needed, layer.padded(gradient)
                rows.append(layer.rows(factors, padded))
            if not self._steps[number].goes_on:
                break
            if layer is None:
                gradient = self._steps[number].operation.backward(needed, gradient)
            else:
                gradient = layer.inputs_of(_by_slot(padded, own.pop()), shape)
        return rows[::-1]

    def _at_outputs(self, outputs: Tensor, targets: Tensor, counted: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the gradient of each row's loss at its output, and the mask of computable rows; None: all."""
        with checked_lookups(outputs):
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

    def _bytes_of_a_slot(self, inputs: Tensor) -> int:
        """Return the number of bytes of a slot; a CPU's turns were measured without what the rows take."""
        each = sum(layer.slot_bytes for layer in self._layers.values())
        if not on_gpu(inputs):
            return each
        with torch.no_grad():
            own = self.matrices(inputs.new_zeros(1, self.dimension))
            _, kept = self._forward(own, inputs.new_zeros(ROWS, *inputs.shape[1:]))
        return each + 4 * sum(t.nbytes for t in tree_leaves(kept) if isinstance(t, Tensor))

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
        turns: ends of consecutive stretches of slots that are computed at a time. On a GPU no client has two slots in
            a stretch: there `index_add_` has no order.
    """

    owners: Tensor
    rows: Tensor
    filled: Tensor
    turns: list[list[int]]

    @classmethod
    def of(cls, pool: Pool, batches: Sequence[Indices], sizes: Sequence[int]) -> _Slots:
        counts = np.array([len(batch) for batch in batches], dtype=np.int64)
        slots = -(-counts // ROWS)
        first_slots, first_records = np.cumsum(slots) - slots, np.cumsum(counts) - counts
        places, cuts = np.arange(slots.sum()), set[int]()
        if on_gpu(pool.inputs):  # all clients' first slots, then their second ones, and so on
            numbers = places - np.repeat(first_slots, slots)
            places = np.argsort(np.argsort(numbers, kind="stable"))
            cuts.update(np.cumsum(np.bincount(numbers)).tolist())
        turns = [sorted({a, b, *(cut for cut in cuts if a < cut < b)}) for a, b in _turns(len(places), sizes)]
        owners = np.zeros(turns[-1][-1] if turns else 0, dtype=np.int64)
        owners[places] = np.repeat(np.arange(len(batches)), slots)
        within = np.arange(counts.sum()) - np.repeat(first_records, counts)
        filled = places[np.repeat(first_slots, counts) + within // ROWS] * ROWS + within % ROWS
        rows = np.full(len(owners) * ROWS, len(pool.inputs) - 1, dtype=np.int64)
        if len(filled):
            rows[filled] = np.concatenate(batches) + np.repeat(pool.starts, counts)

        def placed(numbers: Indices) -> Tensor:
            return torch.from_numpy(numbers).to(pool.inputs.device)

        return cls(placed(owners), placed(rows.reshape(-1, ROWS)), placed(filled), turns)


def _turns(slots: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split slots into turns: the largest size as often as it is filled, then the smallest that holds the rest."""
    start = 0
    while start < slots:
        left = slots - start
        size = sizes[0] if left >= sizes[0] else min(size for size in sizes if size >= left)
        yield start, start + size
        start += size


def _by_slot(rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiply rows [slots * ROWS, ..., d] or [slots, ROWS, d] by their slots' matrices [slots, d, p]."""
    return torch.bmm(rows.view(len(matrices), -1, rows.shape[-1]), matrices)


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
            if not isinstance(step.operation, Linear | Convolve) or "weight" not in step.parts:
                raise NotAChainError("a trained layer that is not stacked, or whose weights are frozen")
            layers[number] = _layer(step, shapes, groups, places)
    used = [part.place for step in steps for part in step.parts.values()]
    if sorted(used) != list(range(len(shapes))):
        raise NotAChainError("a parameter belongs to no layer of the chain, or to several")
    return layers


def _layer(step: ChainStep, shapes: Sequence[torch.Size], groups: Sequence[int], places: Sequence[slice]) -> _Layer:
    weight, bias = step.parts["weight"].place, step.parts.get("bias")
    operation = step.operation
    assert isinstance(operation, Linear | Convolve)
    if bias is None and operation.layer.bias is not None:
        raise NotAChainError("a layer whose bias is frozen")
    outputs, inputs = shapes[weight][0], shapes[weight][1:].numel()
    own = groups[weight], None if bias is None else groups[bias.place]
    layer = inputs, outputs, places[weight], None if bias is None else places[bias.place], own
    if isinstance(operation, Linear):
        return _Layer(*layer)
    convolution = operation.layer
    if not isinstance(convolution, nn.Conv2d) or convolution.groups > 1 or convolution.dilation != (1, 1):
        raise NotAChainError("a convolution with groups or dilation, or of another dimension")
    if own[1] not in {None, own[0]}:
        raise NotAChainError("a convolution whose bias is clipped apart")
    return _Convolution(*layer, convolution, operation.padding)
