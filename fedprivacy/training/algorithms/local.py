"""Local training: every client alone, the baseline for every other algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate


@dataclass(frozen=True)
class LocalTraining(Algorithm):
    """Every client trains a model of its own, starting from the global model, and sends no trained parameter.

    With adaptive clipping, the (noisy) clipping norm after its steps is sent. The steps are charged all the same: the
    model is made to be used, and the charge bounds what its predictions reveal.
    """

    keeps: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    def train(self, client: LocalRound) -> LocalUpdate:
        return LocalUpdate(sent=client.shared, kept=client.descend(client.own, client.steps))
