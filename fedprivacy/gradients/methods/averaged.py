"""Records of several rows: the rows' gradients, averaged by record before they are clipped.

Rows are views of a record (De et al. 2022), or the rows of a person, each with a target of its own; or views of these.
The average is a method like the others, so that the checks on made-up records cover it as well: the bits of a record in
any company, and the number of records that memory holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedprivacy.gradients.selfcheck import PROBES, Method
from fedprivacy.gradients.tape import Sized
from fedprivacy.values.unit import missing, missing_target

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows that a record has.

    Attributes:
        rows: m, the most rows of a person, who is a record: inputs and targets [records, m, ...], and targets are
            missing (`values.unit.missing`) where a person has fewer; 1: no such axis.
        views: augmentation multiplicity: inputs [records, views, ...] or [records, m, views, ...]; 1: no such axis.
    """

    rows: int = 1
    views: int = 1

    @property
    def each(self) -> int:
        """Number of rows of a record, missing ones included."""
        return self.rows * self.views

    def kinds(self, inputs: Tensor, targets: Tensor) -> Batch:
        """Return inputs and targets of as many rows as there are: their shapes and types are those of a row."""
        inputs = inputs.flatten(0, (self.rows > 1) + (self.views > 1))
        return inputs, targets if self.rows == 1 else targets.flatten(0, 1)

    def of_made_up(self, probe: Batch) -> Batch:
        """Make records of made-up rows, with all rows, with one, and with every other one."""
        inputs, targets = probe
        if self.rows > 1:
            places = torch.arange(self.rows, device=inputs.device)
            turned = (torch.arange(PROBES, device=inputs.device).unsqueeze(1) + places) % PROBES
            inputs, targets = inputs[turned], targets[turned.to(targets.device)]
            absent = torch.stack([places < 0, places > 0, places % 2 > 0]).to(targets.device)
            targets[absent] = missing_target(targets)
        if self.views > 1:
            axis = 2 if self.rows > 1 else 1
            inputs = inputs.unsqueeze(axis).expand(*inputs.shape[:axis], self.views, *inputs.shape[axis:]).contiguous()
        return inputs, targets

    def weighted(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lay out the rows of records: inputs, targets and weights [records * rows, ...]; a record's weights sum to 1.

        No branch depends on how many rows a record has.
        """
        weights = inputs.new_ones(len(inputs), dtype=torch.float32)
        if self.rows > 1:
            inputs, targets, weights = rows_that_count(inputs, targets)
        if self.views > 1:
            inputs, targets = inputs.flatten(0, 1), targets.repeat_interleave(self.views, 0)
            weights = (weights / self.views).repeat_interleave(self.views, 0)
        return inputs, targets, weights

    def averaging(self, method: Method) -> Method:
        """Return the method for records, given that for rows."""
        return method if self.each == 1 else AveragedOverRows(method, self)


class AveragedOverRows:
    """Gradients of records as averages over their rows."""

    def __init__(self, of_rows: Method, layout: Layout) -> None:
        """Take the method for rows, and the rows that a record has."""
        self.name, self._of_rows, self._layout = of_rows.name, of_rows, layout

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes that the activations of the last batch took."""
        return self._of_rows.held_bytes

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Compute every trained parameter's piece, for targets [batch, ...] or [batch, m, ...]."""
        inputs, targets, weights = self._layout.weighted(inputs, targets)
        by_record = weights.view(-1, self._layout.each)
        rows = self._of_rows.pieces(inputs, targets, kept_bytes)
        averaged = [(sized.part, sized.piece.averaged(by_record, kept_bytes)) for sized in rows]
        return [Sized(part, piece, piece.norms()) for part, piece in averaged]


def rows_that_count(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lay out the rows of persons, whatever their numbers of rows, in one shape; no branch depends on them.

    A row that is not there has the target of the person's first row, and weighs nothing.

    Args:
        inputs, targets: shape [persons, m, ...]; a person's rows come first.

    Returns:
        Inputs and targets [persons * m, ...], and each row's weight, float32 [persons * m]: one over the person's rows.
    """
    there = ~missing(targets)
    weights = there.to(torch.float32)
    weights /= weights.sum(1, keepdim=True)
    known = there.view(*there.shape, *[1] * (targets.dim() - 2))
    targets = torch.where(known, targets, targets[:, :1])
    return inputs.flatten(0, 1), targets.flatten(0, 1), weights.flatten().to(inputs.device)
