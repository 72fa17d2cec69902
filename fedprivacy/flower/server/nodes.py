"""The nodes of a Flower grid: messages to them with their replies, and the client behind each.

`Correspondence` sends messages and collects replies, on any grid. `ClientRegistry` asks each node who it is, and knows
its client_id and public shard size from then on.

In a deployment the client_id is the name under which the operator registered the SuperNode's public key, and the ledger
binds the two; the request to enrol is signed, for this client and this run of Flower's. The client_id that a client
gives itself counts only in a simulation, where Flower makes up the nodes and no message is signed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedprivacy._support import signing
from fedprivacy.flower.unpublished import is_unreached
from fedprivacy.flower.wire.messages import ENROL, Enrolment, EnrolmentRequest, MessageError, Refusal
from fedprivacy.flower.wire.payloads import claims_of
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.events import Claims
from fedprivacy.values.wording import count_text

if TYPE_CHECKING:
    from fedprivacy.flower.unpublished import NodeInfo

log = logging.getLogger("fedprivacy.server")

_PEM = b"-----BEGIN PUBLIC KEY-----"

_SHORTEST, _LONGEST, _SHARE = 0.1, 3.0, 0.1
"""Seconds between two looks for replies, at least and at most, and as a share of the wait so far. Each look costs the
SuperLink some milliseconds. Flower's own `send_and_receive` always waits 3 s, most of a short round.
"""


class NotSentError(RuntimeError):
    """Some messages did not leave the server; the grants in them stay charged."""


@dataclass(frozen=True, slots=True)
class Replies:
    """The first reply to each message, by the node that was asked: an error may come from another one.

    Nodes in `asked_twice` got their message again: their reply says nothing about the first one. `late` holds messages
    of earlier rounds that have been answered since, each with its reply.
    """

    first: Mapping[int, Message]
    asked_twice: frozenset[int] = frozenset()
    late: Sequence[tuple[Message, Message]] = ()


class Correspondence:
    """The messages and replies of a run over all its rounds: a reply may come rounds too late."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._unanswered: dict[str, Message] = {}

    def ask(self, messages: Sequence[Message], timeout: float) -> Replies:
        """Send messages, and wait until every reply is there or `timeout` seconds have passed.

        A node that disappeared with its message and is back is asked once more: a client that had sealed its update
        sends that, and is charged nothing.
        """
        deadline = time.monotonic() + timeout
        replies = self._exchange(messages, deadline)
        back = {n for n, reply in replies.items() if is_unreached(reply)} & set(self.grid.get_node_ids())
        again = [with_content(m, m.content) for m in messages if m.metadata.dst_node_id in back]
        if again:
            replies |= self._exchange(again, deadline)
        return Replies(replies, frozenset(message.metadata.dst_node_id for message in again))

    def late(self) -> list[tuple[Message, Message]]:
        """Messages whose time was up and that have been answered since, each with its reply."""
        return self._collect(self._unanswered.keys()) if self._unanswered else []

    def _exchange(self, messages: Sequence[Message], deadline: float) -> dict[int, Message]:
        message_ids = list(self.grid.push_messages(messages))
        if len(message_ids) != len(messages):
            raise NotSentError(
                f"Flower took {len(message_ids)} of {len(messages)} messages; the model may be larger than the server, "
                "or a proxy before it, lets through (client_max_body_size in nginx)."
            )
        sent, begun = dict(zip(message_ids, messages, strict=True)), time.monotonic()
        self._unanswered |= sent
        answers: dict[int, Message] = {}
        while outstanding := sent.keys() & self._unanswered.keys():
            arrived = {asked.metadata.dst_node_id: reply for asked, reply in self._collect(outstanding)}
            answers |= arrived
            now = time.monotonic()
            if len(answers) == len(sent) or now >= deadline:
                break
            if not arrived:
                time.sleep(min(max(_SHARE * (now - begun), _SHORTEST), _LONGEST, deadline - now))
        for message_id in sent.keys() & self._unanswered.keys():
            # Enough to match a late answer with: were models kept, a silent client would cost one in each round.
            without_model = RecordDict(dict(sent[message_id].content.config_records))
            self._unanswered[message_id] = with_content(sent[message_id], without_model)
        return answers

    def _collect(self, message_ids: Iterable[str]) -> list[tuple[Message, Message]]:
        """Return each answered message with its reply; of several replies to one message the first counts."""
        wanted = set(message_ids)
        pairs = []
        for reply in self.grid.pull_messages(list(wanted)):
            message_id = reply.metadata.reply_to_message_id
            if message_id in wanted and (asked := self._unanswered.pop(message_id, None)) is not None:
                pairs.append((asked, reply))
        return pairs


def with_content(message: Message, content: RecordDict) -> Message:
    """A new message of the same kind to the same node."""
    return Message(content, message.metadata.dst_node_id, message.metadata.message_type)


class TooFewClientsError(RuntimeError):
    """Too few clients came within the configured time."""


@dataclass(frozen=True, slots=True)
class EnrolledClient:
    """A client that the server can ask: the facts of its `Enrolment`, and the key that Flower authenticated, in PEM.

    `answered` is the number of records from a private answer of the client; 0 if there is none.
    """

    client_id: str
    shard_size: int
    num_partitions: int
    public_key: bytes  # empty in a simulation
    claims: Claims
    answered: float = 0.0

    @property
    def key_hash(self) -> str:
        """The hash under which the ledger knows the client's key; empty in a simulation."""
        return key_hash(self.public_key) if self.public_key else ""


class Eligible(Set[str]):
    """The client_ids of clients that may be asked; stored as the few exceptions, since most clients may be asked.

    Args:
        everybody: clients with an account; shared, not copied, so do not change it.
        closed: clients that may not be asked.
    """

    def __init__(self, everybody: Collection[str], closed: Iterable[str]) -> None:
        self.everybody = everybody
        self.closed = frozenset(closed)

    def __contains__(self, client_id: object) -> bool:
        return client_id not in self.closed and client_id in self.everybody

    def __iter__(self) -> Iterator[str]:
        return (client_id for client_id in self.everybody if client_id not in self.closed)

    def __len__(self) -> int:
        return len(self.everybody) - sum(client_id in self.everybody for client_id in self.closed)

    def same_as(self, other: Eligible) -> bool:
        """Tell whether both name the same clients of one shared population, which is compared by identity."""
        return self.everybody is other.everybody and self.closed == other.closed


class _Online(NamedTuple):
    """The clients online, valid while the same nodes are connected and no client enrols."""

    connected: list[int] | None = None  # None: nobody has looked
    clients: Mapping[int, EnrolledClient] = MappingProxyType({})


class ClientRegistry:
    """The clients of one run, by node id.

    Args:
        timeout: seconds to wait for a client's answer, and for enough clients.
        signing_key: file of the server's key, which signs the requests; a missing file is created for the first
            registered node.
    """

    def __init__(self, timeout: float, signing_key: Path) -> None:
        self._timeout = timeout
        self._signing_key = signing_key
        self._clients: dict[int, EnrolledClient] = {}
        self._parts: dict[int, int] = {}
        self._refused: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._silent: set[int] = set()
        self._greeted: list[int] = []  # the nodes that were connected when all of them had been asked
        self._online = _Online()
        self._arrived: Mapping[int, EnrolledClient] = {}
        self._eligible: tuple[_Online, Eligible, list[int]] | None = None

    def __getitem__(self, node_id: int) -> EnrolledClient:
        return self._clients[node_id]

    def online(self, grid: Grid) -> Mapping[int, EnrolledClient]:
        """Enrolled clients among the nodes that are connected now, in the order of their client_ids.

        A client that came back as another node may be connected as both for a while: only the newest counts. If both
        were asked, two updates would leave for one charge.
        """
        connected = list(grid.get_node_ids())
        if self._online.connected != connected:
            present = set(connected)
            newest = {client.client_id: node_id for node_id, client in self._clients.items() if node_id in present}
            clients = {newest[client_id]: self._clients[newest[client_id]] for client_id in sorted(newest)}
            self._online = _Online(connected, clients)
        return self._online.clients

    def new_arrivals(self, grid: Grid) -> list[EnrolledClient]:
        """Clients that came online, or whose enrolment changed, since the last call."""
        before, self._arrived = self._arrived, self.online(grid)
        if self._arrived is before:
            return []
        return [client for node_id, client in self._arrived.items() if before.get(node_id) is not client]

    def eligible(self, grid: Grid, allowed: Eligible) -> list[int]:
        """The nodes of clients that are online and may be asked, in the order of their client_ids."""
        self.online(grid)
        if self._eligible is None or self._eligible[0] is not self._online or not allowed.same_as(self._eligible[1]):
            nodes = [node_id for node_id, client in self._online.clients.items() if client.client_id in allowed]
            self._eligible = self._online, allowed, nodes
        return list(self._eligible[2])

    def wait_for(self, grid: Grid, count: int) -> None:
        """Enrol until `count` clients are online. A client that refused is not asked again, nor waited for.

        Raises:
            TooFewClientsError: says how many came, and why the others did not.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            answered = self._clients.keys() | self._refused.keys()
            self._ask(grid, [node for node in grid.get_nodes() if node.node_id not in answered])
            online = len(self.online(grid))
            if online >= count:
                return
            if time.monotonic() >= deadline or online + len(self._refused) >= count:
                raise TooFewClientsError(self._shortage(online, count, len(list(grid.get_node_ids()))))
            time.sleep(min(0.5, self._timeout))

    def take_in(self, enrolments: Mapping[int, Enrolment]) -> None:
        """Enrol the simulated clients of this process, by node id, without asking each by a message."""
        self._online = _Online()
        for part, (node_id, own) in enumerate(enrolments.items()):
            self._clients[node_id] = EnrolledClient(own.client_id, own.shard_size, own.num_partitions, b"", {})
            self._parts[node_id] = part
        self._greeted = list(enrolments)

    def part(self, node_id: int) -> int:
        """The part of the simulated split of a client that `take_in` enrolled."""
        return self._parts[node_id]

    def learn(self, records: Mapping[str, float]) -> None:
        """Set the clients' numbers of records, by client_id, from their private answers."""
        self._online = _Online()
        for node_id, client in self._clients.items():
            if client.client_id in records:
                self._clients[node_id] = replace(client, answered=max(records[client.client_id], 1.0))

    def enrol_new(self, grid: Grid) -> None:
        """Ask every node that was never asked who it is."""
        connected = list(grid.get_node_ids())
        if connected == self._greeted:
            return
        asked = self._clients.keys() | self._refused.keys() | self._silent
        self._ask(grid, [node for node in grid.get_nodes() if node.node_id not in asked])
        self._greeted = connected

    def _ask(self, grid: Grid, nodes: list[NodeInfo]) -> None:
        keys: dict[int, bytes] = {}
        for node in nodes:
            self._names[node.node_id] = node.name or f"Node {node.node_id}"
            try:
                keys[node.node_id] = _authenticated_key(node)
            except MessageError as error:
                self._refuse(node, error)
        if not keys:
            return
        messages = [Message(self._request(key, grid), node_id, ENROL) for node_id, key in keys.items()]
        told = Correspondence(grid).ask(messages, self._timeout).first
        replies = {node_id: reply for node_id, reply in told.items() if not is_unreached(reply)}  # it may be back soon
        self._silent = (self._silent | keys.keys()) - replies.keys()
        taken = {client.client_id for client in self.online(grid).values()}
        self._online = _Online()
        for node in nodes:
            if node.node_id in replies:
                self._enrol(node, keys[node.node_id], replies[node.node_id], taken)

    def _request(self, public_key: bytes, grid: Grid) -> RecordDict:
        """The content of the request to enrol; empty for a simulated client."""
        if not public_key:
            return RecordDict()
        request = EnrolmentRequest(run_id=str(grid.run.run_id), client_key=key_hash(public_key))
        return RecordDict({request.name: request.sign(signing.server_key(self._signing_key)).to_record()})

    def _enrol(self, node: NodeInfo, registered_key: bytes, reply: Message, taken: set[str]) -> None:
        try:
            if reply.has_error():
                raise MessageError(f"its ClientApp failed with Flower's code {reply.error.code}; its own log says why")
            if Refusal.name in reply.content:
                raise MessageError(f"it refused ({Refusal.of(reply).code}); its own log says why")
            if Enrolment.name not in reply.content:
                raise MessageError("its answer holds no enrolment")
            enrolment = Enrolment.of(reply)
            claims = claims_of(enrolment.spent)
            client_id = node.name if registered_key else enrolment.client_id
            if client_id in taken:
                raise MessageError(f"another node is enrolled as '{client_id}'")
        except MessageError as error:
            self._refuse(node, error)
            return
        taken.add(client_id)
        self._clients[node.node_id] = EnrolledClient(
            client_id, enrolment.shard_size, enrolment.num_partitions, registered_key, claims
        )

    def _refuse(self, node: NodeInfo, error: MessageError) -> None:
        self._refused[node.node_id] = str(error)
        log.warning("%s is not enrolled: %s", self._names[node.node_id], error)

    def _shortage(self, online: int, count: int, connected: int) -> str:
        problems = self._refused | dict.fromkeys(self._silent, "it did not answer")
        reasons = "".join(f" {self._names[node_id]}: {problem}." for node_id, problem in problems.items())
        remedy = "Start the missing clients, lower clients"
        if 0 < online == connected < count:
            remedy = f"Set clients = {connected} in the app's configuration, start more SuperNodes"
        return (
            f"{online} of {count} clients came within {self._timeout:g} s, from "
            f"{count_text(connected, 'connected SuperNode')}.{reasons} {remedy}, or raise node-timeout."
        )


def _authenticated_key(node: NodeInfo) -> bytes:
    """The key that the operator registered under the node's name; empty for a simulated node.

    Flower gives simulated nodes random bytes for a key. A SuperNode that nobody registered makes its own key, which
    changes with every start: an account under it would begin anew each time.

    Raises:
        MessageError: a real SuperNode without a registered name.
    """
    if node.name:
        return bytes(node.public_key)
    if node.public_key.startswith(_PEM):
        raise MessageError(
            "nobody registered it by name; start the SuperLink with --enable-supernode-auth and register the "
            "SuperNode with 'flwr supernode register KEY.pub --name CLIENT'"
        )
    return b""
