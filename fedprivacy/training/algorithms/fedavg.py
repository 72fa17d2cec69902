"""Federated averaging (McMahan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Every client takes its steps from the global model; the server averages.

    With a strategy that pulls local steps back it is FedProx, with one that takes steps of its own FedAdam or FedYogi.
    """

    def train(self, client: LocalRound) -> LocalUpdate:
        return LocalUpdate(sent=client.descend(client.shared, client.steps))


FEDAVG = FedAvg()
"""The default algorithm."""
