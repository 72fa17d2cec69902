"""Check of a stack: made-up records, under made-up models, computed in other places and other company.

A stack must pass the check of `fedprivacy.gradients.invariance` twice: a record must be computed alike wherever it
stands in a slot and whatever is beside it, and a slot must be summed alike wherever it stands and whatever the other
slots hold, because these belong to other clients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from fedprivacy._support.native import out_of_memory
from fedprivacy.gradients.clipping import Clipping
from fedprivacy.gradients.invariance import EXTREMES, EqualRowsStayEqual, hostile_rows, make_hostile
from fedprivacy.gradients.layout import same_bits
from fedprivacy.gradients.models import Loss, flat_parameters, restoring_parameters
from fedprivacy.gradients.products import on_gpu
from fedprivacy.gradients.selfcheck import DisagreementError, Loop, made_up_records
from fedprivacy.gradients.stacked import ROWS, Stack, alone
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.gradients.watch import checked_lookups

log = logging.getLogger(__name__)

_MODELS = 4
"""Number of made-up models, which the slots have by turns."""

_CLIPPING_NORMS = -4.0, 0.0
"""Clipping norms of the first and the last slot, as powers of two: all slots' norms differ, and most records are
clipped.
"""

_TOLERANCE = 1e-3
"""Relative tolerance, as in the engine's own check."""


def admitted_stack(model: nn.Module, loss: Loss, clipping: Clipping, inputs: Tensor, targets: Tensor) -> Stack | None:
    """Make a stack of this model if it is right and keeps records and clients apart; else return None.

    Args:
        model, loss, clipping: as for `GradientEngine`; the model is not changed.
        inputs, targets: tensors of the records' shapes and types, [any, ...]; no value is read.
    """
    try:
        stack = Stack(model, loss, clipping, inputs)
        loop = Loop(model, loss)
        with undisturbed, checked_lookups(inputs):
            probe = made_up_records(inputs, targets, partial(loop.pieces, kept_bytes=0))
        for _ in stack.sizes:
            try:
                with alone():
                    for seed, wide in enumerate((False, True, False)):
                        _Trial(stack, model, clipping, probe, seed, wide=wide).run(None if wide else loop)
                return stack
            except Exception as reason:
                if not out_of_memory(reason):
                    raise
                stack.sizes = stack.sizes[1:]
    except Exception as reason:  # in any case, clients can be trained one after another
        log.debug("Clients are not stacked: %s", reason)
    return None


class _Trial:
    """One set of made-up records, models and clipping norms, laid out in the largest size."""

    def __init__(
        self, stack: Stack, model: nn.Module, clipping: Clipping, probe: tuple[Tensor, Tensor], seed: int, *, wide: bool
    ) -> None:
        self._stack, self._model, self._clipping = stack, model, clipping
        self._generator, self._device = torch.Generator().manual_seed(seed), probe[0].device
        slots = stack.sizes[0]
        self._tried = set[int]() if seed == 0 else {*stack.sizes}  # numbers of slots whose products were tried
        self._positions = torch.stack([self._hostile_model(wide=wide) for _ in range(_MODELS)])
        self._owners = torch.arange(slots, device=self._device) % _MODELS
        self._norms = torch.logspace(*_CLIPPING_NORMS, slots, base=2.0, dtype=torch.float64, device=self._device)
        self._inputs = hostile_rows(probe[0], slots * ROWS, self._generator, wide=wide)
        self._targets = hostile_rows(probe[1], slots * ROWS, self._generator, wide=False)

    def run(self, loop: Loop | None) -> None:
        """Raise a `DisagreementError` where something is computed differently; compare with the loop if it is given.

        Very different sizes of records show rounding, not errors: then no loop is given.
        """
        slots = self._stack.sizes[0]
        everything = torch.arange(slots, device=self._device)
        whole = self._compute(everything, self._inputs, self._targets)
        if not bool((whole.squared > 0).double().mean() >= 0.5):
            raise DisagreementError("the stack showed no gradient by which it could be judged")
        self._check_places(whole)
        self._check_company(whole)
        for size in self._stack.sizes[1:]:
            try:
                few = self._compute(everything[:size], self._inputs[: size * ROWS], self._targets[: size * ROWS])
                _check(whole.of(everything[:size]), few, "by the number of slots")
            except DisagreementError:
                if not on_gpu(self._inputs):  # a GPU's kernels go by shapes, and it does not mind empty slots
                    raise
                self._stack.sizes = tuple(kept for kept in self._stack.sizes if kept != size)
        if loop is not None:
            self._check_right(whole, loop)

    def _hostile_model(self, *, wide: bool) -> Tensor:
        with restoring_parameters(self._model) as trained:
            make_hostile(trained, self._generator, wide=wide)
            return flat_parameters(self._model)

    def _compute(self, slots: Tensor, inputs: Tensor, targets: Tensor) -> _Computed:
        """Compute rows in slots, whose models are those of `slots` in the original order."""
        stack = self._stack
        matrices = stack.matrices(self._positions)
        counted = torch.ones(len(inputs), dtype=torch.bool, device=self._device)
        own = [matrix.index_select(0, self._owners[slots]) for matrix in matrices]
        new = len(slots) not in self._tried
        self._tried.add(len(slots))
        with EqualRowsStayEqual(len(slots), (0, 1)) if new else nullcontext():
            rows, squared = stack.measure(own, inputs, targets, counted)
        usable = squared.sum(0).isfinite()
        scales = stack.scales(squared, usable, self._norms[slots])
        with EqualRowsStayEqual(len(slots)) if new else nullcontext():
            sums = [at.sums(scales, usable.view(-1, ROWS)) for at in rows]
        sources = [source for at in rows for source in at.sources]
        return _Computed(squared.view(len(squared), -1, ROWS), sources, sums)

    def _check_places(self, whole: _Computed) -> None:
        """Compare slots in another order; then records in other rows of their slots."""
        slots = torch.randperm(len(self._owners), generator=self._generator).to(self._device)
        moved = self._compute(slots, *(_in_slots(t)[slots].flatten(0, 1) for t in (self._inputs, self._targets)))
        _check(whole.of(slots), moved, "by its slot's place")
        rows = torch.randperm(ROWS, generator=self._generator).to(self._device)
        turned = self._compute(
            torch.arange(len(slots), device=self._device),
            *(_in_slots(t)[:, rows].flatten(0, 1) for t in (self._inputs, self._targets)),
        )
        _check(whole.in_rows(rows), turned.without_sums(), "by its place in a slot")

    def _check_company(self, whole: _Computed) -> None:
        """Compare with extreme numbers in half of the rows of half of the slots, and in all rows of a quarter."""
        slots = torch.arange(len(self._owners), device=self._device)
        inputs, targets = self._inputs.clone(), self._targets.clone()
        untouched = torch.rand(len(slots), generator=self._generator) < 0.5
        alone = torch.rand(len(slots), ROWS, generator=self._generator) < 0.5
        kept = (alone | untouched.unsqueeze(1)).to(self._device) & (slots % 4 != 1).unsqueeze(1)
        self._spoil(inputs, ~kept.flatten())
        self._spoil(targets, ~kept.flatten())
        beside = self._compute(slots, inputs, targets)
        _check(whole.of(slots, kept), beside.of(slots, kept), "by its company")
        complete = kept.all(1)
        _check(whole.of(slots[complete]), beside.of(slots[complete]), "by the slots beside its own")

    def _spoil(self, tensor: Tensor, places: Tensor) -> None:
        if tensor.is_floating_point():
            extremes = tensor.new_tensor(EXTREMES)[torch.arange(int(places.sum())) % len(EXTREMES)]
            tensor[places] = extremes.view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor[places])
        else:
            tensor[places] = tensor[0].clone()

    def _check_right(self, whole: _Computed, loop: Loop) -> None:
        """Compare the first slot of each model with the loop, record by record."""
        for number, position in enumerate(self._positions):
            rows = slice(number * ROWS, (number + 1) * ROWS)
            with restoring_parameters(self._model) as trained:
                nn.utils.vector_to_parameters(position.clone(), trained)
                written = loop.pieces(self._inputs[rows], self._targets[rows], kept_bytes=0)
            gradients = torch.cat([piece.gradients().flatten(1) for _, piece in written], 1).double()
            true = gradients.square().sum(1)
            mine = whole.squared[:, number].sum(0)
            error = float((mine.sqrt() - true.sqrt()).abs().max() / true.max().sqrt().clamp(min=1e-12))
            if not error <= _TOLERANCE:
                raise DisagreementError(f"the stack's norms differ from the loop's by {error:.1g} of their size")
            self._check_sum(whole, number, gradients)

    def _check_sum(self, whole: _Computed, number: int, gradients: Tensor) -> None:
        """Compare the sum of a slot with written gradients [ROWS, d], clipped by their own norms and the slot's C."""
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        sizes = torch.tensor([p.numel() for p in trained.values()])
        groups = torch.tensor(self._clipping.groups(list(trained))).repeat_interleave(sizes).to(self._device)
        squared = gradients.new_zeros(int(groups.max()) + 1, ROWS).index_add_(0, groups, gradients.t().square())
        factors = self._clipping.scales(squared, float(self._norms[number]))
        true = (gradients * factors[groups].t()).sum(0)
        mine = self._stack.flat([total[number : number + 1] for total in whole.sums])[0]
        error = float((mine - true).norm() / true.norm().clamp(min=1e-12))
        if not error <= _TOLERANCE:
            raise DisagreementError(f"the stack's sums differ from the loop's by {error:.1g} of their size")


class _Computed:
    """Results of rows in slots.

    Squared norms are [groups, slots, ROWS], the sources of gradients [slots, ROWS, ...], sums [slots, ...].
    """

    def __init__(self, squared: Tensor, sources: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
        self.squared, self._sources, self.sums = squared, list(sources), list(sums)

    @property
    def everything(self) -> list[Tensor]:
        """All results, with the slots first."""
        return [*self.squared, *self._sources, *self.sums]

    def of(self, slots: Tensor, kept: Tensor | None = None) -> _Computed:
        """Select some slots' results; with a mask [slots, ROWS], only these rows, without sums."""
        squared, sources = self.squared[:, slots], [source[slots] for source in self._sources]
        if kept is None:
            return _Computed(squared, sources, [total[slots] for total in self.sums])
        return _Computed(squared[:, kept], [source[kept] for source in sources], [])

    def in_rows(self, rows: Tensor) -> _Computed:
        """Reorder the rows of every slot; the result has no sums."""
        return _Computed(self.squared[:, :, rows], [source[:, rows] for source in self._sources], [])

    def without_sums(self) -> _Computed:
        """Drop the sums, which depend on the order of the rows."""
        return _Computed(self.squared, self._sources, [])


def _in_slots(rows: Tensor) -> Tensor:
    return rows.view(-1, ROWS, *rows.shape[1:])


def _check(one: _Computed, other: _Computed, circumstance: str) -> None:
    if not all(map(same_bits, one.everything, other.everything)):
        raise DisagreementError(f"the stack computes a record or a slot {circumstance}")
