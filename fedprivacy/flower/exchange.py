"""Sending messages and collecting replies, on any Flower grid."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

_POLL_SECONDS = 0.1
"""Flower's own `send_and_receive` looks every 3 s, which most of a short round would be spent on."""


def exchange(grid: Grid, messages: Iterable[Message], timeout: float) -> list[Message]:
    """Send messages and wait until every reply is there or `timeout` seconds have passed."""
    outstanding = set(grid.push_messages(messages))
    deadline = time.monotonic() + timeout
    replies: list[Message] = []
    while outstanding:
        arrived = list(grid.pull_messages(outstanding))
        replies += arrived
        outstanding -= {reply.metadata.reply_to_message_id for reply in arrived}
        if not outstanding or time.monotonic() >= deadline:
            break
        if not arrived:
            time.sleep(_POLL_SECONDS)
    return replies
