"""Per-record results, such as scores, that are bit-identical regardless of the rest of the batch.

A batch is computed in parts of one size. For this size, made-up records are known to have the same results in any place
and any company, under hostile parameters too (`fedprivacy.gradients.invariance`), and to take one path through the
code whatever their values. If no size passes, matrix products take one row each; else records are computed one by one,
as they are after a change of what torch computes (`fedprivacy.gradients.surroundings`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedprivacy._support.native import out_of_memory
from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.layout import WHOLE, Layout, cut, filled, sizes_up_to
from fedprivacy.gradients.models import Loss
from fedprivacy.gradients.pieces import Part, Placed, Written
from fedprivacy.gradients.products import AlikeProducts, one_row_at_a_time
from fedprivacy.gradients.selfcheck import made_up_records
from fedprivacy.gradients.surroundings import Surroundings, computing_with, one_at_a_time, undisturbed
from fedprivacy.gradients.watch import OnePath, checked_lookups

Results = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Function of two rows for each record, [batch, ...] each: any number of results, [batch, ...] each."""


@dataclass(frozen=True, slots=True)
class RowByRow:
    """Function that computes one result for each record of a batch, independently of the others.

    Attributes:
        result: function of two rows for each record, [batch, ...] each, that returns the results, [batch, ...].
        failed: result of a record for which it cannot be computed, shape [1, ...].
        sizes: sizes of the parts, the largest first.
        company: made-up records, [some, ...] each, that are computed beside a record which needs much memory.
        surroundings: what the sizes were found with.
        single_rows: whether matrix products take one row at a time.
    """

    result: Callable[[Tensor, Tensor], Tensor]
    failed: Tensor
    sizes: tuple[int, ...]
    company: tuple[Tensor, Tensor]
    surroundings: Surroundings
    single_rows: bool = False

    def __call__(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results, [batch, ...], and a mask of those that could be computed, bool [batch]."""
        found = [(self.failed[:0], torch.empty(0, dtype=torch.bool))]
        with one_row_at_a_time() if self.single_rows else nullcontext():
            for start, stop, size in cut(len(first), (1,) if self.surroundings.has_changed() else self.sizes):
                found.append(self._compute_part(first[start:stop], second[start:stop], size))
        return _join_parts(found)

    @classmethod
    def choose(
        cls,
        result: Callable[[Tensor, Tensor], Tensor],
        failed: Tensor,
        visible: Results,
        model: nn.Module,
        probe: tuple[Tensor, Tensor],
        *,
        largest: int = WHOLE,
    ) -> RowByRow:
        """Choose the largest parts in which records are computed independently of each other.

        Branches on values are refused: a real record might take one that no made-up record takes, for all records of
        its part.

        Args:
            result, failed: see the attributes.
            visible: function that returns everything of a batch in which other records must not show, [batch, ...]
                each.
            model: model whose parameters are used; they are changed during the check and restored.
            probe: made-up records of the shape and type of the real ones.
            largest: largest wanted size, `WHOLE` times a power of two.
        """
        surroundings = Surroundings(model, visible)
        sizes, single_rows = _sizes_apart(visible, model, probe, largest), False
        if sizes == (1,):
            with one_row_at_a_time():
                sizes = _sizes_apart(visible, model, probe, largest)
            single_rows = sizes != (1,)
        return cls(result, failed, sizes, probe, surroundings, single_rows)

    def _compute_part(self, first: Tensor, second: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Compute one part; if one of its records makes it fail, compute each record with copies of itself."""
        records = len(first)
        try:
            found = self.result(filled(first, size), filled(second, size))[:records]
            return found, torch.ones(records, dtype=torch.bool)
        except Exception as error:
            full = out_of_memory(error) and self.sizes != (1,)  # no single record's fault
        if full:
            return self._in_smaller_parts(first, second, size)
        if records == 1:
            return self.failed, torch.zeros(1, dtype=torch.bool)
        return _join_parts(
            [self._compute_part(*pair, size) for pair in zip(first.split(1), second.split(1), strict=True)]
        )

    def _in_smaller_parts(self, first: Tensor, second: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Compute the same bits in smaller parts, which need less memory; finally, each beside made-up ones."""
        smaller = next((other for other in self.sizes if other < size), None)
        if smaller is None:
            return self._in_company(first, second, size)
        return _join_parts(
            [
                self._compute_part(*pair, smaller)
                for pair in zip(first.split(smaller), second.split(smaller), strict=True)
            ]
        )

    def _in_company(self, first: Tensor, second: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Compute each record beside made-up ones; a record that does not fit even so needs too much memory itself.

        Raises:
            MemoryError: memory does not hold made-up records either, so that no record is at fault.
        """
        try:
            self.result(*(filled(rows, size) for rows in self.company))
        except Exception as error:
            raise MemoryError(f"memory does not hold {size} records at a time") from error
        found = []
        for pair in zip(first.split(1), second.split(1), strict=True):
            rows = (filled(torch.cat([own, public]), size) for own, public in zip(pair, self.company, strict=True))
            try:
                found.append((self.result(*rows)[:1], torch.ones(1, dtype=torch.bool)))
            except Exception:
                found.append((self.failed, torch.zeros(1, dtype=torch.bool)))
        return _join_parts(found)


def _join_parts(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    results, known = zip(*parts, strict=True)
    return torch.cat(results), torch.cat(known)


def _sizes_apart(visible: Results, model: nn.Module, probe: tuple[Tensor, Tensor], largest: int) -> tuple[int, ...]:
    """Find the sizes of parts in which records are independent, the largest first; (1,) if there are none."""
    # An axis of the same length could be taken for that of the records.
    axes = {length for part in probe for length in part.shape[1:]}
    sizes = [size for size in sizes_up_to(max(largest, 4 * WHOLE)) if size not in axes]
    sizes = [size for size in sizes if size <= largest] or sizes[-1:]
    rows = filled(probe[0], sizes[0]), filled(probe[1], sizes[0])
    try:
        with OnePath(*rows):
            visible(*rows)
        return sizes_that_agree(_Judged(visible), model, probe, sizes, 0)
    except Exception:  # such parts cannot be computed at all, or show who is in them
        return (1,)


class _Judged:
    """Adapter: results in the place of gradients, so that the same check judges them."""

    name, held_bytes = "the model", 0

    def __init__(self, visible: Results) -> None:
        self._visible = visible

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
        rows = (result.reshape(len(inputs), -1) for result in self._visible(inputs, targets))
        found = [Written(row if row.is_floating_point() else row.double()) for row in rows]
        return [Placed(Part(place), piece) for place, piece in enumerate(found)]


class RecordScores:
    """Scores of each record of a batch under one model.

    Attributes:
        model: the model; read in every call, never changed. Its parameters at construction are public.
        rows: maximum number of records computed at a time.
        example: outputs and targets of made-up records, on the CPU.
    """

    @one_at_a_time()
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        measures: Sequence[Loss],
        kinds: tuple[Tensor, Tensor],
        *,
        threads: int = 1,
        rows: int = 1,
    ) -> None:
        """Choose the size of the parts on made-up records.

        Args:
            model: a model that `check_model` accepts.
            loss: loss that returns one value for each record; it decides which made-up records are accepted.
            measures: functions that return one number for each record from outputs and targets on the CPU, where a bad
                record raises an error and does not end the process.
            kinds: inputs and targets, each [any, ...], of the records' shapes and types; no value is read.
            threads: number of torch's threads for everything, such as the fastest for the gradients.
            rows: m, the most rows of a record, whose score is the mean of its rows'; see `GradientEngine`.

        Raises:
            Exception: any error that model or loss raises on a record of zeros.
        """
        self.model, self._measures, self._threads, self._layout = model, measures, threads, Layout(rows)
        with undisturbed, torch.no_grad(), computing_with(threads):
            probe = made_up_records(*kinds, lambda inputs, targets: loss(self._outputs(inputs), targets.cpu()))
            self.example = self._outputs(probe[0]), probe[1].cpu()
            failed = torch.full((1, len(measures)), math.nan, dtype=torch.float64)
            self._row_by_row = RowByRow.choose(self._scores, failed, self._compute, model, probe)
        self.rows = self._row_by_row.sizes[0]

    @one_at_a_time()
    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scores of a batch [batch, ...], shape [batch, measures], float64, on the CPU.

        All scores of a record are NaN if one of them, or its output, cannot be computed or is NaN.
        """
        inputs, targets, weights = self._layout.lay_out(inputs, targets)
        with undisturbed, torch.no_grad(), computing_with(self._threads):
            scores = self._row_by_row(inputs, targets)[0]
        if self._layout.each == 1:
            return scores
        weighted = scores * weights.to(scores).unsqueeze(1)
        return weighted.view(-1, self._layout.each, weighted.shape[1]).sum(1)

    def _scores(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = self._outputs(inputs), targets.cpu()
        # Copies, because a measure may write into them.
        pairs = ((measure, outputs.clone(), targets.clone()) for measure in self._measures)
        scores = torch.stack([measure(*own).double() for measure, *own in pairs], 1)
        unknown = outputs.isnan().reshape(len(outputs), -1).any(1) | scores.isnan().any(1)
        return scores.masked_fill(unknown.unsqueeze(1), math.nan)

    def _outputs(self, inputs: Tensor) -> Tensor:
        with AlikeProducts(), checked_lookups(inputs):
            outputs: Tensor = self.model(inputs)
        return outputs.cpu()

    def _compute(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._outputs(inputs), self._scores(inputs, targets)
