"""All that we use of Flower beyond what it publishes, each with its reason: what a new version of Flower may break.

Every other module imports Flower's public packages alone, and a test says so. What Flower documents for operators is
used where it is needed: its four programs with their options, `--format json`, FLWR_HOME, its logger `flwr`. The
SuperLink on a database for large models is a module by itself, `fedprivacy.deploy.superlink`.

Nothing of Flower is loaded with this module: a service that writes logs needs the words alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import flwr.proto.node_pb2
    import flwr.supercore.run
    from flwr.app import Message

    NodeInfo = flwr.proto.node_pb2.NodeInfo  # what the public `Grid.get_nodes` returns
    Run = flwr.supercore.run.Run  # what the public `Grid.run` returns, and `Grid.set_run` takes


def begin_task(run_id: int, node_id: int) -> None:
    """Let this process speak for a node of a run: `Message` reads from here who sends it.

    A grid of our own has no process of Flower's around it that would say so.
    """
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id


def empty_run(run_id: int) -> Run:
    """Return a run of which only the number is known: `Grid.run` must return one."""
    from flwr.supercore.run import Run

    return Run.create_empty(run_id)


def number(message: Message, message_id: str) -> None:
    """Give a message its id, as a grid does: its metadata have no public way."""
    message.metadata.__dict__["_message_id"] = message_id


def failed_reply(message: Message) -> Message:
    """Return a SuperNode's reply to a message at which the ClientApp raised an error: its code has no public name."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "ClientApp failed"), reply_to=message)


def is_unreached(reply: Message) -> bool:
    """Return whether a reply says that the node disappeared with its message: such codes have no public names."""
    from flwr.common.constant import ErrorCode

    return reply.has_error() and reply.error.code in {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    }


ADMITTED = "SuperNode ID:"
"""Words in a SuperNode's log once the SuperLink has admitted it: the client's side has no other sign."""

LOG_LINE = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:[-\d :,]+)?: +(?P<rest>.*)")
"""Form of a line of Flower's log without its colours; of its own, Flower writes no other that a program could read."""

PENDING, FINISHED, COMPLETED = "pending", "finished:", "finished:completed"
"""Words of `flwr ls --format json` for a run that waits, that is over, and whose ServerApp ran to its end."""

POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Environment variable: seconds between two looks of a SuperExec for work. A rehearsal should not wait for three."""

UNPACKED_APPS = ".flwr/apps"
"""Folder in which Flower unpacks the apps that it is sent, and which no backup needs; `.flwr` is FLWR_HOME."""
