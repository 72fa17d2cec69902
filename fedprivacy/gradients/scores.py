"""What records score under a model, each by itself, bit for bit.

What is measured of a record may depend on nothing else in its batch, as its gradient may not. So a batch is computed in
parts of one size, in which made-up records are known to have the same outputs and scores in any place and any company,
under hostile parameters too (`fedprivacy.gradients.invariance`), and to take one path whatever they say; where they
have not, one record after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.parts import WHOLE, cut, filled
from fedprivacy.gradients.pieces import Written
from fedprivacy.gradients.products import AlikeProducts, full_precision
from fedprivacy.gradients.selfcheck import made_up_records
from fedprivacy.gradients.tape import Part, Sized
from fedprivacy.gradients.threads import computing_with
from fedprivacy.gradients.watch import OnePath


class RecordScores:
    """Scores of each record of a batch under one model.

    Attributes:
        model: read in every call, never changed. Its parameters when this is made are public.
        rows: records that are computed at a time.
        example: outputs and targets of made-up records, on the CPU.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, measures: Sequence[Loss], kinds: tuple[Tensor, Tensor], *, threads: int = 1
    ) -> None:
        """Choose the size of the parts on made-up records.

        Args:
            model: as `check_model` accepts it.
            loss: one for each record; it says which made-up records the model takes.
            measures: each gives one number for each record, of outputs and targets on the CPU: there, what is wrong
                with a record raises, and ends no process.
            kinds: inputs and targets, each [any, ...], of the records that will come; no value is read.
            threads: of torch's, with which everything is computed, such as are fastest for the gradients.

        Raises:
            Exception: what model or loss raise on a record of zeros.
        """
        self.model, self._measures, self._threads = model, measures, threads
        with full_precision, torch.no_grad(), computing_with(threads):
            probe = made_up_records(*kinds, lambda ones, others: loss(self._outputs(ones), others.cpu()))
            self.example = self._outputs(probe[0]), probe[1].cpu()
            self.rows = WHOLE if self._keeps_apart(probe) else 1

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The scores of a batch [batch, ...], shape [batch, measures], float64, on the CPU.

        Of a record whose output or score cannot be computed, or is not a number, all are NaN.
        """
        parts = [torch.empty(0, len(self._measures), dtype=torch.float64)]
        with full_precision, torch.no_grad(), computing_with(self._threads):
            for start, stop, size in cut(len(inputs), (self.rows,)):
                parts.append(self._of_part(inputs[start:stop], targets[start:stop], size))
        return torch.cat(parts)

    def _of_part(self, inputs: Tensor, targets: Tensor, size: int) -> Tensor:
        """The scores of a part; if one of its records makes it fail, each is computed with copies of itself."""
        try:
            return self._scores(filled(inputs, size), filled(targets, size))[: len(inputs)]
        except Exception:
            pairs = zip(inputs.split(1), targets.split(1), strict=True)
            return torch.cat([self._of_one(record, target, size) for record, target in pairs])

    def _of_one(self, record: Tensor, target: Tensor, size: int) -> Tensor:
        try:
            return self._scores(filled(record, size), filled(target, size))[:1]
        except Exception:
            return torch.full((1, len(self._measures)), math.nan, dtype=torch.float64)

    def _scores(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = self._outputs(inputs), targets.cpu()
        pairs = ((measure, outputs.clone(), targets.clone()) for measure in self._measures)  # it may write into them
        scores = torch.stack([measure(*own).double() for measure, *own in pairs], 1)
        unknown = outputs.isnan().reshape(len(outputs), -1).any(1) | scores.isnan().any(1)
        return scores.masked_fill(unknown.unsqueeze(1), math.nan)

    def _outputs(self, inputs: Tensor) -> Tensor:
        with AlikeProducts(), KnownIds() if inputs.is_cuda else nullcontext():
            outputs: Tensor = self.model(inputs)
        return outputs.cpu()

    def _keeps_apart(self, probe: tuple[Tensor, Tensor]) -> bool:
        """Whether a record's outputs and scores are the same in any place of a part, and in any company.

        A branch on a value may be one that no made-up record takes, and that a true one takes for all around it.
        """
        rows = filled(probe[0], WHOLE), filled(probe[1], WHOLE)
        try:
            with OnePath(*rows):
                self._scores(*rows)
            return sizes_that_agree(_Judged(self), self.model, probe, (WHOLE,), 0) == (WHOLE,)
        except Exception:  # such parts cannot be computed at all, or show who is in them
            return False


class KnownIds(TorchFunctionMode):
    """For the length of a computation, an embedding raises on an id that its table does not have.

    On a GPU a kernel would stop there, and the process could use the device no more: one record would decide whether
    the client ever answers again, see `tried_on_cpu`. The ids are looked at outside of torch: this is no branch that
    chooses a path (`OnePath`), for a part in which it raises is computed one by one.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one of torch's functions."""
        if func is functional.embedding:
            _look_up(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _look_up(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> None:
    """By the names that torch gives the arguments."""
    ids = input.cpu().numpy()
    if ((ids < 0) | (ids >= len(weight))).any():
        raise IndexError("an id is out of range")


class _Judged:
    """Outputs and scores in the place of gradients, to be judged by the same check."""

    name, held_bytes = "the model", 0

    def __init__(self, of: RecordScores) -> None:
        self._of = of

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        rows = self._of._outputs(inputs).reshape(len(inputs), -1), self._of._scores(inputs, targets)
        found = map(Written, rows)
        return [Sized(Part(place), piece, piece.norms()) for place, piece in enumerate(found)]
