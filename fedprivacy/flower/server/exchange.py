"""Sending messages and collecting replies, on any Flower grid."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

_POLL_SECONDS = 0.1
"""Flower's own `send_and_receive` looks every 3 s, which most of a short round would be spent on."""

_UNREACHED = frozenset({ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE})
"""Flower's codes for a node that went away with a message."""


class NotSentError(RuntimeError):
    """Messages that did not leave the server; what was granted with them stays charged."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back for messages.

    Attributes:
        replies: the first to each message, by the node that was asked: an error may come from another one.
        asked_twice: nodes that got their message a second time: what they answer says nothing of the first.
        late: earlier messages that have been answered since, each with its reply.
    """

    replies: Mapping[int, Message]
    asked_twice: frozenset[int] = frozenset()
    late: Sequence[tuple[Message, Message]] = ()


class Correspondence:
    """Messages that were sent and what came back, over the rounds of a run: an answer may come rounds too late.

    Args:
        grid: carries the messages.

    Attributes:
        grid: the same.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._unanswered: dict[str, Message] = {}

    def ask(self, messages: Sequence[Message], timeout: float) -> Answers:
        """Send messages, and wait until every reply is there or `timeout` seconds have passed.

        A node that went away with its message, and is back, is asked once more: a client that had sealed its update
        sends that, and is charged nothing.
        """
        deadline = time.monotonic() + timeout
        replies = self._exchange(messages, deadline)
        back = {node_id for node_id, reply in replies.items() if _unreached(reply)} & set(self.grid.get_node_ids())
        again = [_copy(message) for message in messages if message.metadata.dst_node_id in back]
        if again:
            replies |= self._exchange(again, deadline)
        return Answers(replies, frozenset(message.metadata.dst_node_id for message in again))

    def late(self) -> list[tuple[Message, Message]]:
        """Messages that nobody waits for any more, and that have been answered since, each with its reply."""
        return self._collect(self._unanswered.keys()) if self._unanswered else []

    def _exchange(self, messages: Sequence[Message], deadline: float) -> dict[int, Message]:
        message_ids = list(self.grid.push_messages(messages))
        if len(message_ids) != len(messages):
            raise NotSentError(
                f"Flower took {len(message_ids)} of {len(messages)} messages; the model may be larger than the server, "
                "or a proxy before it, lets through (client_max_body_size in nginx)."
            )
        sent = dict(zip(message_ids, messages, strict=True))
        self._unanswered |= sent
        answers: dict[int, Message] = {}
        while outstanding := sent.keys() & self._unanswered.keys():
            arrived = {asked.metadata.dst_node_id: reply for asked, reply in self._collect(outstanding)}
            answers |= arrived
            if len(answers) == len(sent) or time.monotonic() >= deadline:
                break
            if not arrived:
                time.sleep(_POLL_SECONDS)
        self._unanswered |= {i: _without_model(sent[i]) for i in sent.keys() & self._unanswered.keys()}
        return answers

    def _collect(self, message_ids: Iterable[str]) -> list[tuple[Message, Message]]:
        """What was asked and what was answered; of several answers to one message the first counts."""
        wanted = set(message_ids)
        pairs = []
        for reply in self.grid.pull_messages(list(wanted)):
            message_id = reply.metadata.reply_to_message_id
            if message_id in wanted and (asked := self._unanswered.pop(message_id, None)) is not None:
                pairs.append((asked, reply))
        return pairs


def _without_model(message: Message) -> Message:
    """What a late answer is matched with: were whole messages kept, a silent client would cost a model each round."""
    content = RecordDict(dict(message.content.config_records))
    return Message(content, message.metadata.dst_node_id, message.metadata.message_type)


def _unreached(reply: Message) -> bool:
    return bool(reply.has_error() and reply.error.code in _UNREACHED)


def _copy(message: Message) -> Message:
    """The same message, to be sent once more."""
    return Message(message.content, message.metadata.dst_node_id, message.metadata.message_type)
