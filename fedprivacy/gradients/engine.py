"""The engine: clipped sums of per-record gradients, by the fastest means that has proved itself on this model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from fedprivacy.gradients.admission import admitted, fitting_portion
from fedprivacy.gradients.clipping import Clipping, FlatClipping
from fedprivacy.gradients.compiled import CompiledSum
from fedprivacy.gradients.fallbacks import Loop
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.parameters import split_flat, trainable_parameters
from fedprivacy.gradients.precision import full_precision
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.selfcheck import Means, made_up_records
from fedprivacy.gradients.tape import Sized

_LONGEST_SQUARED = 2.0**200
"""A gradient whose squared norm is larger counts as not finite: its scale would lose digits in float32."""

_SUMMED_IN_FLOAT32 = 1024
"""Records that are added in float32: the rounding of as many equal gradients stays within the mechanism's allowance."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """What a batch contributes.

    Attributes:
        total: sum of the clipped gradients, shape [d].
        squared_norms: of the records' gradients before clipping, where they are finite; in parts of any length.
            Private.
    """

    total: Tensor
    squared_norms: list[Tensor]

    @property
    def records(self) -> int:
        """How many records' gradients are finite. Private."""
        return sum(len(part) for part in self.squared_norms)

    def within(self, clipping_norm: float) -> int:
        """How many records' gradients are no longer than the clipping norm. Private."""
        return sum(int((part <= clipping_norm**2).sum()) for part in self.squared_norms)


class GradientEngine:
    """Clipped sums of one model's per-record gradients.

    Attributes:
        model: read in every call, never changed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clipping: Clipping | None = None,
        *,
        views: int = 1,
        max_memory: int | None = None,
        autocast: torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        """Prepare nothing yet: the shape of the first batch decides.

        Args:
            model: as `checks.supported.check_model` accepts it.
            loss: one loss for each record.
            clipping: how one record's contribution is bounded; None: `FlatClipping`.
            views: augmentation multiplicity (De et al. 2022): each record comes as this many views of itself, whose
                gradients are averaged before the average is clipped; inputs then have shape [batch, views, ...].
            max_memory: bytes that activations and written gradients may take. Batches are computed in parts and added
                up, which changes nothing but rounding; the parts are as large as is fastest, or as this allows.
            autocast: `torch.bfloat16`: activations and their gradients in this type, where that is safe; norms and sums
                stay float32, so the bound on a record's contribution stands. None: everything in float32.
            compile: compile the step where a compiler works and the model is a chain of layers. It takes seconds to
                minutes, once. Measure before you choose it: on a CPU it has not been faster yet.
        """
        self.model = model
        self._loss, self._clipping, self._max_memory = loss, clipping or FlatClipping(), max_memory
        self._views, self._autocast = views, autocast
        self._compile = compile
        self._compiled: CompiledSum | None = None
        trained = trainable_parameters(model)
        self._shapes = [p.shape for p in trained.values()]
        self._size = sum(shape.numel() for shape in self._shapes)
        self._dtype = reduce(torch.promote_types, (p.dtype for p in trained.values()), torch.float32)
        self._groups = self._clipping.groups(list(trained))
        self._prepared: tuple[object, ...] = ()
        self._means: Means = Loop(model, loss)
        self._part_size, self._kept_bytes = 1, 0

    @property
    def means(self) -> str:
        """How gradients are computed: the name of what the self-check has admitted."""
        return self._means.name

    def prepare(self, inputs: Tensor, targets: Tensor) -> None:
        """Choose the means for records of this shape and type, on made-up records alone; done once.

        Args:
            inputs: shape [any, ...], a view of a record in each row; no value is read.
            targets: shape [any, ...]; likewise.

        Raises:
            LossShapeError: the loss is not one value for each record.
            UnsupportedModelError: a layer's input is changed in place, or the model draws random numbers.
            Exception: what the model raises on a record of zeros.
        """
        kind = (inputs.shape[1:], inputs.dtype, inputs.device, targets.shape[1:], targets.dtype)
        if kind == self._prepared:
            return
        loop = Loop(self.model, self._loss)
        with full_precision:
            probe = made_up_records(inputs, targets, loop)
            self._means = admitted(self.model, self._loss, loop, probe, autocast=self._autocast)
        portion = fitting_portion(self._means, probe, self._max_memory)
        self._part_size, self._kept_bytes = max(1, portion.records // self._views), portion.kept_bytes
        self._prepared, self._compiled = kind, None

    def clipped_sum(self, inputs: Tensor, targets: Tensor, clipping_norm: float, mask: Tensor | None = None) -> Tensor:
        """Sum over the batch of each record's gradient, scaled down to Euclidean norm at most `clipping_norm`.

        Formal guarantee: adding or removing one row of (`inputs`, `targets`) changes the result by a vector of norm at
        most `clipping_norm` (up to float32 rounding, for which the mechanism has an allowance), for models that
        `supported` accepts. A record whose gradient is not finite, or cannot be computed, contributes zero: whether a
        batch fails must not depend on one record.

        Args:
            inputs: the batch, shape [batch, ...]; may be empty.
            targets: shape [batch, ...].
            clipping_norm: C.
            mask: which rows are records and not padding, shape [batch], bool; None: all.

        Returns:
            Shape [d], all trainable parameters' gradients flattened and joined in the order of `trainable_parameters`;
            float64 if the batch is too large to be added in float32.

        Raises:
            LossShapeError: the loss is not one value for each record.
        """
        return self.clip(inputs, targets, clipping_norm, mask).total

    def clip(self, inputs: Tensor, targets: Tensor, clipping_norm: float, mask: Tensor | None = None) -> Clipped:
        """The clipped sum, and the norms of what was clipped; see `clipped_sum`."""
        if mask is not None:
            inputs, targets = inputs[mask], targets[mask]
        if len(inputs) > 0:
            self.prepare(inputs if self._views == 1 else inputs.flatten(0, 1), targets)
        with full_precision, torch.no_grad():  # means that need autograd's graph ask for it
            return self._clip_any(inputs, targets, clipping_norm)

    def _clip_any(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> Clipped:
        """The clipped sum of however many records."""
        if len(inputs) <= _SUMMED_IN_FLOAT32:
            return self._clip(inputs, targets, clipping_norm)
        parts = [self._clip(*part, clipping_norm) for part in self._parts(inputs, targets, _SUMMED_IN_FLOAT32)]
        total = torch.zeros(self._size, dtype=torch.float64, device=inputs.device)
        for part in parts:
            total += part.total
        return Clipped(total, [squared for part in parts for squared in part.squared_norms])

    def _clip(self, inputs: Tensor, targets: Tensor, clipping_norm: float) -> Clipped:
        """The clipped sum of few enough records to add them in the parameters' precision."""
        total = torch.zeros(self._size, dtype=self._dtype, device=inputs.device)
        if len(inputs) == 0:
            return Clipped(total, [])
        compiled, squared = self._compiled_for(len(inputs)), []
        for part in self._parts(inputs, targets, compiled.rows if compiled else self._part_size):
            done = compiled(*part, clipping_norm) if compiled else None
            if done is None:
                squared += self._add(*part, clipping_norm, split_flat(total, self._shapes))
            else:
                total += done[0]
                squared.append(done[1][done[1] <= _LONGEST_SQUARED])
        return Clipped(total, squared)

    def _parts(self, inputs: Tensor, targets: Tensor, most: int) -> Iterable[tuple[Tensor, Tensor]]:
        """The batch in parts of so many records, and the rest.

        Parts of one size, whatever the batch's: were they cut anew for one record more, every sum would round anew.
        """
        if len(inputs) <= most:
            return [(inputs, targets)]
        return zip(inputs.split(most), targets.split(most), strict=True)

    def _compiled_for(self, records: int) -> CompiledSum | None:
        """The compiled step, if it is wanted and can be had."""
        if self._compile and self._compiled is None and isinstance(self._means, Program):
            self._compiled = CompiledSum(self._padded_sum, min(records, self._part_size))
        return self._compiled

    def _padded_sum(
        self, inputs: Tensor, targets: Tensor, records: Tensor, clipping_norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The clipped sum [d] of the first `records` rows, and all squared norms [batch]; no branch on a value."""
        total = torch.zeros(self._size, dtype=self._dtype, device=inputs.device)
        pieces = self._pieces(inputs, targets)
        squared = self._by_group(pieces)
        whole = squared.sum(0)
        counted = (whole <= _LONGEST_SQUARED) & (torch.arange(len(inputs), device=inputs.device) < records)
        scales = self._clipping.scales(squared, clipping_norm).where(counted, 0.0)
        self._sum(pieces, scales, split_flat(total, self._shapes))
        return total, whole

    def _add(self, inputs: Tensor, targets: Tensor, clipping_norm: float, outs: list[Tensor]) -> list[Tensor]:
        """Add the clipped gradients of some records to `outs`, one for each parameter; returns their squared norms.

        Records that make the computation fail are found by halving the batch, and left out.
        """
        try:
            pieces = self._pieces(inputs, targets)
        except Exception:  # what concerns all records, `prepare` has raised
            if len(inputs) == 1:
                return []
            half = len(inputs) // 2
            first = self._add(inputs[:half], targets[:half], clipping_norm, outs)
            return first + self._add(inputs[half:], targets[half:], clipping_norm, outs)
        if not pieces:  # no parameter had any influence
            return []
        squared = self._by_group(pieces)
        whole = squared.sum(0) if len(squared) > 1 else squared[0]
        if not float(whole.max()) <= _LONGEST_SQUARED:  # of NaN and others, the largest is NaN
            finite = whole <= _LONGEST_SQUARED
            some = bool(finite.any())
            return self._add(inputs[finite], targets[finite], clipping_norm, outs) if some else []
        self._sum(pieces, self._clipping.scales(squared, clipping_norm), outs)
        return [whole]

    def _sum(self, pieces: list[Sized], scales: Tensor, outs: list[Tensor]) -> None:
        """Add every record's gradient times its scale [groups, batch] to `outs`."""
        by_group = scales.to(outs[0].dtype).unbind()
        for sized in pieces:
            place = sized.part.place
            sized.piece.add_weighted_sum(by_group[self._groups[place]], sized.part.of(outs[place]))

    def _pieces(self, inputs: Tensor, targets: Tensor) -> list[Sized]:
        """The pieces of the records' gradients, averaged over their views."""
        if self._views == 1:
            return self._means.pieces(inputs, targets, self._kept_bytes)
        rows = self._means.pieces(inputs.flatten(0, 1), targets.repeat_interleave(self._views, 0), self._kept_bytes)
        averaged = [(sized.part, sized.piece.averaged(self._views, self._kept_bytes)) for sized in rows]
        return [Sized(part, piece, piece.norms()) for part, piece in averaged]

    def _by_group(self, pieces: list[Sized]) -> Tensor:
        """Squared norms of the records' gradients, shape [groups, batch], float64."""
        squared = torch.stack([sized.norms for sized in pieces]).double().square_()
        groups = max(self._groups) + 1
        if groups == 1:
            return squared.sum(0, keepdim=True)
        rows = torch.tensor([self._groups[sized.part.place] for sized in pieces], device=squared.device)
        return squared.new_zeros(groups, squared.shape[1]).index_add_(0, rows, squared)


def clipped_gradient_sum(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, clipping_norm: float, *, mask: Tensor | None = None
) -> Tensor:
    """`GradientEngine.clipped_sum` for one batch. To take many steps, keep the engine."""
    return GradientEngine(model, loss).clipped_sum(inputs, targets, clipping_norm, mask)
