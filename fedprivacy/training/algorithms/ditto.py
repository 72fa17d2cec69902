"""Ditto (Li, Hu, Beirami, Smith 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate, pull_towards


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Federated averaging plus a personal model v_k of each client, with the penalty lambda/2 |v_k - global|^2.

    Both models look at the records, so a round's private steps are divided between them: the last `personal_steps` are
    v_k's. It never leaves the client.

    Attributes:
        pull: lambda, strength of the penalty.
        personal_steps: number of a round's local steps that move the client's own model; 0: half of them.
    """

    keeps: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    fewest_steps: ClassVar[int] = 2
    pull: float = 1.0
    personal_steps: int = 0

    def train(self, client: LocalRound) -> LocalUpdate:
        personal = self.personal_steps or client.steps // 2
        shared = client.descend(client.shared, max(1, client.steps - personal))
        left = client.steps - max(
            1, client.steps - personal
        )  # of a budget's last steps, the global model has the first
        start = pull_towards(client.own, client.shared, self.pull, client.learning_rate, left)
        return LocalUpdate(sent=shared, kept=client.descend(start, left))
