"""What records score under a model, each by itself, bit for bit.

What is measured of a record may depend on nothing else in its batch, as its gradient may not: outputs and scores are
computed as `fedprivacy.gradients.apart` says.
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

from fedprivacy.gradients.apart import RowByRow
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.products import AlikeProducts, full_precision
from fedprivacy.gradients.selfcheck import made_up_records
from fedprivacy.gradients.threads import computing_with


class RecordScores:
    """Scores of each record of a batch under one model.

    Attributes:
        model: read in every call, never changed. Its parameters when this is made are public.
        rows: records that are computed at a time, at most.
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
            failed = torch.full((1, len(measures)), math.nan, dtype=torch.float64)
            self._row_by_row = RowByRow.admitted(self._scores, failed, self._shown, model, probe)
        self.rows = self._row_by_row.sizes[0]

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The scores of a batch [batch, ...], shape [batch, measures], float64, on the CPU.

        Of a record whose output or score cannot be computed, or is not a number, all are NaN.
        """
        with full_precision, torch.no_grad(), computing_with(self._threads):
            return self._row_by_row(inputs, targets)[0]

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

    def _shown(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._outputs(inputs), self._scores(inputs, targets)


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
