"""Scores of records under a model, each computed independently of the others, bit for bit.

A record's score, like its gradient, must not depend on the rest of its batch: outputs and scores are computed by
`fedprivacy.gradients.apart`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedprivacy.gradients.apart import RowByRow
from fedprivacy.gradients.indices import in_range
from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.losses import Loss
from fedprivacy.gradients.products import AlikeProducts
from fedprivacy.gradients.selfcheck import made_up_records
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.gradients.threads import computing_with, one_at_a_time


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
            self._row_by_row = RowByRow.admitted(self._scores, failed, self._shown, model, probe)
        self.rows = self._row_by_row.sizes[0]

    @one_at_a_time()
    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scores of a batch [batch, ...], shape [batch, measures], float64, on the CPU.

        All scores of a record are NaN if one of them, or its output, cannot be computed or is NaN.
        """
        inputs, targets, weights = self._layout.weighted(inputs, targets)
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
        with AlikeProducts(), in_range(inputs):
            outputs: Tensor = self.model(inputs)
        return outputs.cpu()

    def _shown(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._outputs(inputs), self._scores(inputs, targets)
