"""Rows of a record: the views of one, the rows of a person, or views of these, and what each of them weighs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedprivacy.gradients.selfcheck import PROBES
from fedprivacy.values.unit import missing, missing_target

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows that a record has, and how their gradients become one.

    All of it is public, and no record's rows decide what another's weigh.

    Attributes:
        rows: m, the most rows of a person, who is a record; 1: a row is a record.
        views: augmentation multiplicity; 1: the rows as they are.
        per_step: number of a person's rows that are computed in a step; None: all.
        summed: whether a person's gradient is the sum of the computed rows' gradients over the most there can be,
            so that rows count alike; else it is their mean, so that persons do.
    """

    rows: int = 1
    views: int = 1
    per_step: int | None = None
    summed: bool = False

    @property
    def computed(self) -> int:
        """Number of a person's rows that a batch holds, missing ones included: the axis is there if it is above 1."""
        return self.rows if self.per_step is None else min(self.per_step, self.rows)

    @property
    def each(self) -> int:
        """Number of computed rows of a record, missing ones included."""
        return self.computed * self.views

    def kinds(self, inputs: Tensor, targets: Tensor) -> Batch:
        """Return inputs and targets of as many rows as there are: their shapes and types are those of a row."""
        inputs = inputs.flatten(0, (self.computed > 1) + (self.views > 1))
        return inputs, targets if self.computed == 1 else targets.flatten(0, 1)

    def of_made_up(self, probe: Batch) -> Batch:
        """Make records of made-up rows, with all rows, with one, and with every other one."""
        inputs, targets = probe
        if self.computed > 1:
            places = torch.arange(self.computed, device=inputs.device)
            turned = (torch.arange(PROBES, device=inputs.device).unsqueeze(1) + places) % PROBES
            inputs, targets = inputs[turned], targets[turned.to(targets.device)]
            absent = torch.stack([places < 0, places > 0, places % 2 > 0]).to(targets.device)
            targets[absent] = missing_target(targets)
        if self.views > 1:
            axis = 2 if self.computed > 1 else 1
            inputs = inputs.unsqueeze(axis).expand(*inputs.shape[:axis], self.views, *inputs.shape[axis:]).contiguous()
        return inputs, targets

    def weighted(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lay out the rows of records, whatever their numbers, in one shape; no branch depends on them.

        A row that is not there has the target of the person's first row, and weighs nothing.

        Args:
            inputs: shape [records, ...], with an axis of the computed rows and one of the views, if above 1.
            targets: shape [records, ...], with the axis of the computed rows. A person's rows come first; targets are
                missing (`values.unit.missing`) where there are fewer.

        Returns:
            Inputs, targets and weights, float32, [records * rows, ...]; the weights of a record add up to at most 1.
        """
        weights = inputs.new_ones(len(inputs), dtype=torch.float32)
        if self.computed > 1:
            there = ~missing(targets)
            weights = there.to(torch.float32)
            weights /= self.computed if self.summed else weights.sum(1, keepdim=True)
            known = there.view(*there.shape, *[1] * (targets.dim() - 2))
            targets = torch.where(known, targets, targets[:, :1]).flatten(0, 1)
            inputs, weights = inputs.flatten(0, 1), weights.flatten().to(inputs.device)
        if self.views > 1:
            inputs, targets = inputs.flatten(0, 1), targets.repeat_interleave(self.views, 0)
            weights = (weights / self.views).repeat_interleave(self.views, 0)
        return inputs, targets, weights


ONE_ROW = Layout()
"""A row is a record."""
