"""Who is behind a node: client_id and public shard size of every node that Flower sees.

In a deployment with SuperNode authentication the client_id is the name that the operator registered, else the hash of
the node's public key; what the client says of itself counts only where Flower authenticates nobody, in a simulation.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedprivacy.flower.exchange import exchange
from fedprivacy.flower.records import ENROL, ENROLMENT, REFUSAL, Enrolment, RecordError, Refusal

log = logging.getLogger("fedprivacy.server")


class TooFewClientsError(RuntimeError):
    """Not enough clients came within the configured time."""


@dataclass(frozen=True, slots=True)
class EnrolledClient:
    """A client that the server can ask.

    Attributes:
        client_id: stable over rounds and runs, independent of the node id.
        shard_size: what it disclosed; 0 if shard sizes are private.
        authenticated: whether Flower authenticated the node, so that the name is not the client's own word.
    """

    client_id: str
    shard_size: int
    authenticated: bool


class ClientRegistry:
    """The clients of one run, by node id.

    Args:
        timeout: seconds to wait for a client's answer, and for enough clients.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._clients: dict[int, EnrolledClient] = {}
        self._problems: dict[int, str] = {}

    def __getitem__(self, node_id: int) -> EnrolledClient:
        return self._clients[node_id]

    def online(self, grid: Grid) -> dict[int, EnrolledClient]:
        """Enrolled clients among the nodes that are connected now, in the order of their client_ids."""
        nodes = [node_id for node_id in grid.get_node_ids() if node_id in self._clients]
        return {node_id: self._clients[node_id] for node_id in sorted(nodes, key=lambda n: self._clients[n].client_id)}

    def wait_for(self, grid: Grid, count: int) -> None:
        """Enrol until `count` clients are online.

        Raises:
            TooFewClientsError: says how many came, and what kept the others away.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            self._ask(grid, [node for node in grid.get_nodes() if node.node_id not in self._clients])
            online = len(self.online(grid))
            if online >= count:
                return
            if time.monotonic() >= deadline:
                raise TooFewClientsError(self._shortage(online, count))
            time.sleep(min(0.5, self._timeout))

    def enrol_new(self, grid: Grid) -> None:
        """Ask every node that was never asked who it is."""
        self._ask(grid, [n for n in grid.get_nodes() if n.node_id not in self._clients | self._problems])

    def _ask(self, grid: Grid, nodes: list[NodeInfo]) -> None:
        messages = [Message(RecordDict(), node.node_id, ENROL) for node in nodes]
        replies = {reply.metadata.src_node_id: reply for reply in exchange(grid, messages, self._timeout)}
        for node in nodes:
            self._enrol(grid, node, replies.get(node.node_id))

    def _enrol(self, grid: Grid, node: NodeInfo, reply: Message | None) -> None:
        try:
            enrolment = _parse(reply)
            client_id = authenticated_id(node) or enrolment.client_id
            if any(client.client_id == client_id for client in self.online(grid).values()):
                raise RecordError(f"another node is enrolled as '{client_id}'")
        except RecordError as error:
            self._problems[node.node_id] = str(error)
            log.warning("Node %s is not enrolled: %s", node.node_id, error)
            return
        self._problems.pop(node.node_id, None)
        self._clients[node.node_id] = EnrolledClient(
            client_id, enrolment.shard_size, authenticated_id(node) is not None
        )

    def _shortage(self, online: int, count: int) -> str:
        problems = "".join(f" Node {node_id}: {problem}." for node_id, problem in self._problems.items())
        return (
            f"{online} of {count} clients came within {self._timeout:g} s.{problems} Start the missing clients, "
            "lower clients, or raise node-timeout."
        )


def authenticated_id(node: NodeInfo) -> str | None:
    """The client_id that Flower vouches for: the registered name, else the public key's hash; None without a key."""
    if not node.public_key:
        return None
    return node.name or f"key-{hashlib.sha256(node.public_key).hexdigest()[:16]}"


def _parse(reply: Message | None) -> Enrolment:
    if reply is None:
        raise RecordError("it did not answer")
    if reply.has_error():
        raise RecordError(f"its ClientApp failed with Flower's code {reply.error.code}; its own log says why")
    for name, kind in ((REFUSAL, Refusal), (ENROLMENT, Enrolment)):
        record = reply.content.get(name)
        if isinstance(record, ConfigRecord):
            parsed = kind.from_record(record)
            if isinstance(parsed, Refusal):
                raise RecordError(f"it refused ({parsed.code}); its own log says why")
            return parsed
    raise RecordError("its answer holds no enrolment")
