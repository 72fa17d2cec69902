"""Local training: what a client can do alone, by which every other algorithm is to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate


@dataclass(frozen=True)
class LocalTraining(Algorithm):
    """Every client trains a model of its own, from the global model on, which stays where it is.

    No parameter that was trained leaves; with adaptive clipping the norm does that its steps arrived at, noisy as they
    are. The steps are charged all the same: the model is made to be used, and whoever sees what it predicts learns no
    more than the charge says.
    """

    keeps: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    def train(self, client: LocalRound) -> LocalUpdate:
        return LocalUpdate(sent=client.shared, kept=client.descend(client.own, client.steps))
