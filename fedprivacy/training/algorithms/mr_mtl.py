"""Mean-regularised multi-task learning, MR-MTL (Liu, Hu, Wu, Smith 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate, pull_towards


@dataclass(frozen=True)
class MeanRegularised(Algorithm):
    """Every client trains a model w_k of its own, with the penalty lambda/2 |w_k - mean|^2; the server averages the
    models.

    With lambda = 0 this is local training; from lambda = 1 / learning rate on it is FedAvg, to the last bit of the
    trained parameters. Where noise is large or shards are small, the best lambda lies in between. The penalty's part
    of all local steps is taken before the gradients' part, so that both ends are exact: the paper alternates, which
    differs by terms of second order in learning_rate * lambda.

    The client sends its own model, which went through the mechanism. Choosing lambda by private records costs privacy
    that is not charged: choose it beforehand.

    Attributes:
        pull: lambda, strength of the penalty.
    """

    keeps: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    pull: float = 1.0

    def train(self, client: LocalRound) -> LocalUpdate:
        start = pull_towards(client.own, client.shared, self.pull, client.learning_rate, client.steps)
        own = client.descend(start, client.steps)
        return LocalUpdate(sent=own, kept=own)
