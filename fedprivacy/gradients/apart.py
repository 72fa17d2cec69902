"""Something computed of each record of a batch by itself, bit for bit, whatever the others are.

A batch is computed in parts of one size, in which made-up records are known to have the same results in any place and
any company, under hostile parameters too (`fedprivacy.gradients.invariance`), and to take one path whatever they say;
where they have not, with matrix products of one row each, or else one record after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.memory import out_of_memory
from fedprivacy.gradients.parts import WHOLE, cut, filled, sizes_up_to
from fedprivacy.gradients.pieces import Written
from fedprivacy.gradients.products import one_row_at_a_time
from fedprivacy.gradients.tape import Part, Sized
from fedprivacy.gradients.watch import OnePath

Results = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""What is computed of two rows for each record, [batch, ...] each: any results, [batch, ...] each."""


@dataclass(frozen=True, slots=True)
class RowByRow:
    """Computes one result of each record of a batch.

    Attributes:
        result: of two rows for each record, [batch, ...] each, what is wanted of it, [batch, ...].
        failed: what stands for a record of which it cannot be computed, shape [1, ...].
        sizes: of the parts, the largest first.
        company: made-up records, [some, ...] each, for one that fills the memory with others.
        single_rows: whether matrix products take one row at a time.
    """

    result: Callable[[Tensor, Tensor], Tensor]
    failed: Tensor
    sizes: tuple[int, ...]
    company: tuple[Tensor, Tensor]
    single_rows: bool = False

    def __call__(self, ones: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The results, [batch, ...], and which of them could be computed, bool [batch]."""
        found = [(self.failed[:0], torch.empty(0, dtype=torch.bool))]
        with one_row_at_a_time() if self.single_rows else nullcontext():
            for start, stop, size in cut(len(ones), self.sizes):
                found.append(self._of_part(ones[start:stop], others[start:stop], size))
        return _joined(found)

    @classmethod
    def admitted(
        cls,
        result: Callable[[Tensor, Tensor], Tensor],
        failed: Tensor,
        shown: Results,
        model: nn.Module,
        probe: tuple[Tensor, Tensor],
        *,
        largest: int = WHOLE,
    ) -> RowByRow:
        """The largest parts in which records are computed by themselves.

        A branch on a value may be one that no made-up record takes, and that a true one takes for all around it.

        Args:
            result, failed: see the attributes.
            shown: everything of a batch that must not show who else is in it, [batch, ...] each.
            model: with whose parameters it is computed; they are others in the meantime.
            probe: made-up records of the kind that will come.
            largest: the largest size that is wanted, `WHOLE` times a power of two.
        """
        sizes, single_rows = _sizes_apart(shown, model, probe, largest), False
        if sizes == (1,):
            with one_row_at_a_time():
                sizes = _sizes_apart(shown, model, probe, largest)
            single_rows = sizes != (1,)
        return cls(result, failed, sizes, probe, single_rows)

    def _of_part(self, ones: Tensor, others: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """A part's; if one of its records makes it fail, each is computed with copies of itself."""
        records = len(ones)
        try:
            found = self.result(filled(ones, size), filled(others, size))[:records]
            return found, torch.ones(records, dtype=torch.bool)
        except Exception as error:
            full = out_of_memory(error) and self.sizes != (1,)  # which is not the fault of one of them
        if full:
            return self._in_smaller_parts(ones, others, size)
        if records == 1:
            return self.failed, torch.zeros(1, dtype=torch.bool)
        return _joined([self._of_part(*pair, size) for pair in zip(ones.split(1), others.split(1), strict=True)])

    def _in_smaller_parts(self, ones: Tensor, others: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Compute the same bits in less memory; in the smallest parts, each record beside made-up ones."""
        of = next((smaller for smaller in self.sizes if smaller < size), None)
        if of is None:
            return self._in_company(ones, others, size)
        return _joined([self._of_part(*pair, of) for pair in zip(ones.split(of), others.split(of), strict=True)])

    def _in_company(self, ones: Tensor, others: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Compute each record beside made-up ones; one that does not fit even so asks for too much itself.

        Raises:
            MemoryError: memory does not hold made-up records either, which is no record's fault.
        """
        try:
            self.result(*(filled(rows, size) for rows in self.company))
        except Exception as error:
            raise MemoryError(f"memory does not hold {size} records at a time") from error
        found = []
        for pair in zip(ones.split(1), others.split(1), strict=True):
            rows = (filled(torch.cat([own, public]), size) for own, public in zip(pair, self.company, strict=True))
            try:
                found.append((self.result(*rows)[:1], torch.ones(1, dtype=torch.bool)))
            except Exception:
                found.append((self.failed, torch.zeros(1, dtype=torch.bool)))
        return _joined(found)


def _joined(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    results, known = zip(*parts, strict=True)
    return torch.cat(results), torch.cat(known)


def _sizes_apart(shown: Results, model: nn.Module, probe: tuple[Tensor, Tensor], largest: int) -> tuple[int, ...]:
    """The sizes of parts in which records are computed by themselves, the largest first; if there are none, 1."""
    axes = {length for part in probe for length in part.shape[1:]}  # an axis as long would pass for that of the records
    sizes = [size for size in sizes_up_to(max(largest, 4 * WHOLE)) if size not in axes]
    sizes = [size for size in sizes if size <= largest] or sizes[-1:]
    rows = filled(probe[0], sizes[0]), filled(probe[1], sizes[0])
    try:
        with OnePath(*rows):
            shown(*rows)
        return sizes_that_agree(_Judged(shown), model, probe, sizes, 0)
    except Exception:  # such parts cannot be computed at all, or show who is in them
        return (1,)


class _Judged:
    """Results in the place of gradients, to be judged by the same check."""

    name, held_bytes = "the model", 0

    def __init__(self, shown: Results) -> None:
        self._shown = shown

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        rows = (result.reshape(len(inputs), -1) for result in self._shown(inputs, targets))
        found = [Written(row if row.is_floating_point() else row.double()) for row in rows]
        return [Sized(Part(place), piece, piece.norms()) for place, piece in enumerate(found)]
