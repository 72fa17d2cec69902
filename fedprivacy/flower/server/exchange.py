"""Sending messages and collecting replies, on any Flower grid."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedprivacy.flower.unpublished import is_unreached

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
