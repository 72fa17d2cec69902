"""Survival by intervals: a hazard for each, a loss for each record, and Harrell's concordance.

Cox's partial likelihood compares every patient with all who are still at risk, so no gradient belongs to one record.
A discrete-time hazard model asks of each patient alone in which of fixed intervals of time the event came (Brown 1975;
for federations Andreux, Manoel, Menuet, Saillard, Simpson 2020): its loss is a sum over records, which DP-SGD needs.
Targets are (event, time) of shape [batch, 2]: 1 for an event and 0 for a patient who was censored, and when that was.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.gradients import register_rule


class Intercepts(nn.Module):
    """An intercept for each interval: scores of shape [batch, 1] become logits of shape [batch, intervals].

    Attributes:
        weight: shape [intervals].
    """

    def __init__(self, intervals: int, hazard: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((intervals,), math.log(hazard / (1 - hazard))))

    def forward(self, scores: Tensor) -> Tensor:
        """Logits of the hazards."""
        return scores + self.weight


def _gradients(layer: nn.Module, scores: Tensor, gradients: Tensor) -> dict[str, Tensor]:
    return {"weight": gradients}


register_rule(Intercepts, _gradients)


def hazard_model(features: int, intervals: int, hazard: float) -> nn.Module:
    """Proportional odds: one linear score, and an intercept for each interval; at first everybody has `hazard`.

    Args:
        features: number of covariates.
        intervals: number of intervals of time.
        hazard: probability of the event in an interval, given that it has not come before.

    Returns:
        A model from covariates [batch, features] to the logits of the hazards [batch, intervals].
    """
    score = nn.Linear(features, 1, bias=False)
    nn.init.zeros_(score.weight)
    return nn.Sequential(score, Intercepts(intervals, hazard))


def survival_loss(logits: Tensor, targets: Tensor, ends: Tensor) -> Tensor:
    """Each patient's negative log-likelihood, shape [batch].

    A patient counts in every interval that she survived whole and in the one of her event; the interval in which she
    was censored says nothing, and neither does anything after the last one.

    >>> logits, ends = torch.zeros(3, 2), torch.tensor([1.0, 2.0])
    >>> targets = torch.tensor([[1.0, 0.5], [1.0, 2.0], [0.0, 1.5]])  # event in the first, in the second; censored
    >>> survival_loss(logits, targets, ends) / math.log(2)
    tensor([1., 2., 1.])

    Args:
        logits: of the hazards, shape [batch, intervals].
        targets: (event, time), shape [batch, 2].
        ends: of the intervals, rising, shape [intervals], in the unit of the times. The first begins at 0.
    """
    event, time = targets[:, :1], targets[:, 1:]
    starts = torch.cat([ends.new_tensor([-math.inf]), ends[:-1]])
    survived = (time > ends).to(logits.dtype)
    died = event * ((time > starts) & (time <= ends))
    return ((survived + died) * functional.softplus(logits) - died * logits).sum(1)


def expected_risk(logits: Tensor) -> Tensor:
    """The cumulative hazard, minus the logarithm of the chance to survive every interval, shape [batch]."""
    return functional.softplus(logits).sum(1)


def concordance_index(risks: Tensor, targets: Tensor) -> float:
    """Harrell's C: of all pairs of whom one is known to have gone first, the share in which her risk was larger.

    Equal risks count one half. A pair can be told apart if the earlier time is an event; at equal times, if one of them
    is an event and the other is not.

    >>> concordance_index(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([[1.0, 5.0], [1.0, 6.0], [0.0, 7.0]]))
    1.0

    Args:
        risks: shape [patients].
        targets: (event, time), shape [patients, 2].

    Returns:
        A number from 0 to 1, or NaN where no pair can be told apart.
    """
    event, time = targets[:, 0] == 1.0, targets[:, 1]
    first, second = time[:, None], time[None, :]
    pairs = event[:, None] & ((first < second) | ((first == second) & ~event[None, :]))
    larger = (risks[:, None] > risks[None, :]).double() + 0.5 * (risks[:, None] == risks[None, :]).double()
    return (larger[pairs].sum() / pairs.sum()).item()
