"""Strategies: how the server averages, by name, and which settings of a run each takes.

Flower implements them, and this floor knows no Flower: a strategy is named by its source, as a task is, and the server
loads it (`fedprivacy.server.app`). What it takes is written down here, because a configuration refuses what its
strategy would ignore before anything starts. To add a strategy is to add an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SERVER_SETTINGS = ("server_learning_rate", "server_momentum", "proximal_mu")
"""The settings of strategies. A strategy of the user's own takes those that are arguments of what makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStrategy:
    """A strategy that has a name here.

    Attributes:
        source: `package.module:name` of what makes it.
        defaults: each of `SERVER_SETTINGS` that it takes, with the value where the setting is left open.
        arguments: what its maker calls a setting, where that is something else.
        fixed: further arguments of its maker.
        fewest_clients: in each round; with fewer, it is no better than the plain average, or makes no sense.
        fewest_local_steps: in each round; with fewer, it is the plain average.
        averages: whether all it needs of a round is the clients' average; else it looks at each client's update.
    """

    source: str
    defaults: Mapping[str, float] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    fewest_clients: int = 1
    fewest_local_steps: int = 1
    averages: bool = True


STRATEGIES = {
    "fedavg": KnownStrategy(source="flwr.serverapp.strategy:FedAvg"),
    # Hsu et al. 2019. In the long run a momentum m makes steps 1 / (1 - m) times as long, which 1 - m makes up for.
    "fedavgm": KnownStrategy(
        source="flwr.serverapp.strategy:FedAvgM", defaults={"server_learning_rate": 0.1, "server_momentum": 0.9}
    ),
    # Both Reddi et al. 2021: beta 2 is .99, tau .001.
    "fedadam": KnownStrategy(
        source="flwr.serverapp.strategy:FedAdam",
        defaults={"server_learning_rate": 0.03, "server_momentum": 0.9},
        arguments={"server_learning_rate": "eta", "server_momentum": "beta_1"},
    ),
    "fedyogi": KnownStrategy(
        source="flwr.serverapp.strategy:FedYogi",
        defaults={"server_learning_rate": 0.03, "server_momentum": 0.9},
        arguments={"server_learning_rate": "eta", "server_momentum": "beta_1"},
    ),
    # Li et al. 2020. The first local step starts where the pull leads to.
    "fedprox": KnownStrategy(
        source="flwr.serverapp.strategy:FedProx", defaults={"proximal_mu": 0.01}, fewest_local_steps=2
    ),
    # Yin et al. 2018. Of fewer than five values, a fifth at each end is none.
    "fedtrimmedavg": KnownStrategy(
        source="flwr.serverapp.strategy:FedTrimmedAvg", fixed={"beta": 0.2}, fewest_clients=5, averages=False
    ),
    # Blanchard et al. 2017: f malicious clients need 2 f + 3 in all.
    "krum": KnownStrategy(
        source="flwr.serverapp.strategy:Krum", fixed={"num_malicious_nodes": 1}, fewest_clients=5, averages=False
    ),
}
"""Flower's strategies, by their name in configurations."""

DEFAULT_STRATEGY = "fedavg"
