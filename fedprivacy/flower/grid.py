"""The in-process engine: a Flower `Grid` that calls a ClientApp directly, with no Ray and no SuperLink.

The same ServerApp and ClientApp run on it unchanged. It leans on two things that Flower does not publish: the task
identity that `Message` reads, and the place where a grid writes a message's id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedprivacy.flower.client.local import IN_PROCESS

log = logging.getLogger("fedprivacy.engine")

_SERVER_NODE_ID = 1
_FIRST_CLIENT_NODE_ID = 1000
_CLIENT_FAILED = 2  # Flower's code for an exception in a ClientApp


class InProcessGrid(Grid):
    """Delivers every message at once, one client after another, in the calling thread.

    Args:
        client_app: what every client runs.
        clients: number of simulated clients.
        run_config: what the clients find in their context.
        run_id: Flower's number of the run.
    """

    def __init__(self, client_app: ClientApp, clients: int, run_config: UserConfig, run_id: int = 1) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = run_id
        TaskIdentity.node_id = _SERVER_NODE_ID
        self._client_app = client_app
        self._run = Run.create_empty(run_id)
        self._messages = 0
        self._replies: dict[str, Message] = {}
        self._contexts = {
            _FIRST_CLIENT_NODE_ID + i: Context(
                run_id=run_id,
                node_id=_FIRST_CLIENT_NODE_ID + i,
                node_config={"partition-id": i, "num-partitions": clients, IN_PROCESS: True},
                state=RecordDict(),
                run_config=run_config,
            )
            for i in range(clients)
        }

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message from the server."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Every client's node id."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run every message's client at once and keep the replies."""
        message_ids = []
        for message in messages:
            message_id = self._number(message)
            reply = self._deliver(message)
            self._number(reply)
            self._replies[message_id] = reply
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand over the replies to these messages, each once."""
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run the messages' clients and return their replies."""
        return self.pull_messages(self.push_messages(messages))

    def _number(self, message: Message) -> str:
        self._messages += 1
        message.metadata.__dict__["_message_id"] = str(self._messages)
        return str(self._messages)

    def _deliver(self, message: Message) -> Message:
        try:
            return self._client_app(message, self._contexts[message.metadata.dst_node_id])
        except Exception:
            log.exception("The ClientApp of node %s failed.", message.metadata.dst_node_id)
            return Message(Error(_CLIENT_FAILED, "ClientApp failed"), reply_to=message)
