"""The strategy that a run wraps: it chooses among clients that may be asked, and sees no others.

User-level noise cannot work with every strategy: `check_averages` refuses the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedprivacy.flower.server.nodes import ClientRegistry, Eligible, EnrolledClient, TooFewClientsError
from fedprivacy.participation import Participation, Turnout
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig

if TYPE_CHECKING:
    from fedprivacy.flower.unpublished import NodeInfo

AVERAGING = (flower.FedAvg, flower.FedProx, flower.FedAvgM, flower.FedAdagrad, flower.FedAdam, flower.FedYogi)
"""Strategies that need only the average of the updates; their subclasses may look at each update."""

_COMPARE_UPDATES = (
    *(flower.Bulyan, flower.FedMedian, flower.FedTrimmedAvg, flower.MultiKrum, flower.QFedAvg),
    *(flower.FedXgbBagging, flower.FedXgbCyclic),
)
"""Flower's strategies that compute something else from the updates than their average."""

_NOISE_OF_THEIR_OWN = (
    *(flower.DifferentialPrivacyServerSideFixedClipping, flower.DifferentialPrivacyClientSideFixedClipping),
    *(flower.DifferentialPrivacyServerSideAdaptiveClipping, flower.DifferentialPrivacyClientSideAdaptiveClipping),
)

_BETWEEN_LOOKS = 0.9
"""Seconds after which a second look at the nodes means waiting: `sample_nodes` sleeps 1 s between looks."""


def averages(strategy: Strategy) -> bool:
    """Tell whether a strategy is known to need no more than the average."""
    return type(strategy) in AVERAGING


def check_averages(strategy: Strategy) -> None:
    """Refuse a strategy that cannot work with one noisy average instead of the clients' updates.

    Raises:
        ConfigError: the strategy compares updates, or adds noise of its own.
    """
    name = type(strategy).__name__
    if isinstance(strategy, _COMPARE_UPDATES):
        raise ConfigError(
            f"the strategy is {name}, which compares the clients' updates, and with user-level noise there is "
            "nothing but their noisy average; wrap one that averages, such as FedAvg or FedAdam."
        )
    if isinstance(strategy, _NOISE_OF_THEIR_OWN):
        raise ConfigError(
            f"the strategy is {name}, which adds noise of its own; wrap the strategy that it wraps instead."
        )


@dataclass(frozen=True)
class WrappedStrategy:
    """A strategy of Flower's, with the clients of a run."""

    strategy: Strategy
    config: RunConfig
    registry: ClientRegistry  # knows who is behind a node
    grid: Grid
    participation: Participation  # who is there

    @property
    def weighted_by(self) -> str:
        """The name of the metric by which the strategy weighs updates."""
        return getattr(self.strategy, "weighted_by_key", "num-examples")

    def turnout(self, number: int, allowed: AbstractSet[str], at: float) -> Turnout:
        """The clients that the strategy may choose from: allowed ones, less those that are away or were not drawn."""
        if not self.participation.selective:
            return Turnout(allowed, at)
        return self.participation.turnout(number, self._online(allowed), at)

    def could_ask(self, allowed: AbstractSet[str], began: float) -> bool:
        """Tell whether a round lacks clients only because of the draw or of absences: a later one may have some."""
        return self.participation.selective and isfinite(began) and bool(self._online(allowed))

    def online(self) -> set[str]:
        """Clients that are connected now."""
        return {client.client_id for client in self.registry.online(self.grid).values()}

    def _online(self, allowed: AbstractSet[str]) -> set[str]:
        return {client_id for client_id in self.online() if client_id in allowed}

    def clients(self, written: Iterable[int]) -> dict[int, EnrolledClient]:
        """The clients behind some nodes, by node id."""
        return {node_id: self.registry[node_id] for node_id in written}

    def choose_clients(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, allowed: AbstractSet[str]
    ) -> dict[int, Message]:
        """The wrapped strategy's messages to allowed clients, by node id; none if it has too few of those to go on."""
        grid = self.grid
        among = allowed if isinstance(allowed, Eligible) else Eligible(allowed, ())

        def eligible() -> list[int]:
            return self.registry.eligible(grid, among)

        if not eligible():
            return {}
        complete = len(self.registry.online(grid)) >= self.config.clients
        view = EligibleGrid(grid, eligible, timeout=0.0 if complete else self.config.node_timeout)
        try:
            messages = list(self.strategy.configure_train(number, arrays, config, cast(Grid, view)))
        except TooFewClientsError:
            if allowed >= {client.client_id for client in self.registry.online(grid).values()}:
                raise  # nobody is left out, and still there are too few
            return {}
        asked = [self.registry[message.metadata.dst_node_id].client_id for message in messages]
        if len(set(asked)) < len(asked):
            raise ValueError("The wrapped strategy asks a client twice in a round: a release that nobody would charge.")
        return {message.metadata.dst_node_id: message for message in messages}


@Grid.register
class EligibleGrid:
    """A grid as a wrapped strategy may see it: hides nodes that must not be asked, and never waits for ever.

    Flower's strategies sample with `sample_nodes`, which polls `get_node_ids` until enough nodes are connected. When
    some have exhausted their budgets that may never be. All else is the real grid's.
    `eligible` tells at every look which nodes may be asked; a strategy that after `timeout` seconds still looks, and
    finds no more of them than before, is stopped.
    """

    def __init__(self, grid: Grid, eligible: Callable[[], list[int]], timeout: float) -> None:
        self._grid = grid
        self._eligible = eligible
        self._timeout = max(timeout, _BETWEEN_LOOKS)
        self._deadline: float | None = None
        self._most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """Nodes that are connected and may be asked."""
        node_ids = self._eligible()
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._timeout
        elif now >= self._deadline and len(node_ids) <= self._most:  # more of them may be enough
            raise TooFewClientsError(
                f"The strategy wants more clients than the {len(node_ids)} that are connected and have budget left. "
                "Lower its min_train_nodes and min_available_nodes, or give clients a larger budget."
            )
        self._most = max(self._most, len(node_ids))
        return node_ids

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Nodes that are connected and may be asked."""
        eligible = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in eligible]
