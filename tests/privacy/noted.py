"""Grids that note what crosses them."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, MessageType, RecordDict

from fedprivacy.flower import InProcessGrid
from tests.flower.deployment import DeployedGrid


class Noted:
    """To be mixed into a grid: each message, with the content of its reply before the server takes it apart."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.sent: dict[str, Message] = {}
        self.exchanged: list[tuple[Message, RecordDict]] = []

    @property
    def trained(self) -> list[int]:
        """The nodes that were asked to train, in order."""
        kind = MessageType.TRAIN
        return [each.metadata.dst_node_id for each in self.sent.values() if each.metadata.message_type == kind]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        self.sent |= zip(ids, messages, strict=True)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            self.exchanged.append((self.sent[reply.metadata.reply_to_message_id], RecordDict({**reply.content})))
        return replies


class NotedGrid(Noted, InProcessGrid):
    """The in-process engine, noting."""


class NotedDeployment(Noted, DeployedGrid):
    """Deployed clients, noting."""
