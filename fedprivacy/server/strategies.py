"""Flower's strategies by name, with settings that leave the choice of clients to the privacy budget."""

from __future__ import annotations

from collections.abc import Callable

from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedTrimmedAvg, Krum, Strategy

from fedprivacy.runs.configuration import RunConfig

_BUILDERS: dict[str, Callable[..., Strategy]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedprox": lambda **sampling: FedProx(**sampling, proximal_mu=0.01),
    "fedtrimmedavg": FedTrimmedAvg,
    "krum": lambda **sampling: Krum(**sampling, num_malicious_nodes=1),
}


def build_strategy(config: RunConfig) -> Strategy:
    """The configured strategy. One client is enough for a round: the others may have spent their budgets."""
    return _BUILDERS[config.strategy](
        fraction_train=config.fraction_train, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1
    )
