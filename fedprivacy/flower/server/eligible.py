"""A grid as a wrapped strategy may see it: only nodes whose clients have budget left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedprivacy.flower.server.registry import TooFewClientsError

_BETWEEN_LOOKS = 0.9
"""`sample_nodes` sleeps 1 s between looks: a strategy that looks again later than this is waiting for nodes."""


class EligibleGrid(Grid):
    """Delegates to a grid, hides nodes that must not be asked, and never waits for ever.

    Flower's strategies sample with `sample_nodes`, which polls `get_node_ids` until enough nodes are connected. When
    some have exhausted their budgets that may never be.

    Args:
        grid: the real grid.
        eligible: the node ids that may be asked now; called at every look.
        timeout: seconds after which a strategy that still looks for nodes is stopped.
    """

    def __init__(self, grid: Grid, eligible: Callable[[], list[int]], timeout: float) -> None:
        self._grid = grid
        self._eligible = eligible
        self._timeout = max(timeout, _BETWEEN_LOOKS)
        self._deadline: float | None = None

    def get_node_ids(self) -> Iterable[int]:
        """Nodes that are connected and may be asked."""
        node_ids = self._eligible()
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._timeout
        elif now >= self._deadline:
            raise TooFewClientsError(
                f"The strategy wants more clients than the {len(node_ids)} that are connected and have budget left. "
                "Lower its min_train_nodes and min_available_nodes, or give clients a larger budget."
            )
        return node_ids

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Nodes that are connected and may be asked."""
        eligible = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in eligible]

    def set_run(self, run: Any) -> None:
        """Delegate."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Delegate."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Any:
        """Delegate."""
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Any) -> Any:
        """Delegate."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        """Delegate."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        """Delegate."""
        return self._grid.send_and_receive(messages, timeout=timeout)
