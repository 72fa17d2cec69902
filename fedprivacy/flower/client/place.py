"""Where a client runs, and who is heeded there.

Two kinds of places run a client. In a *simulation* (our in-process engine, or a Ray worker of Flower's) it holds a part
of the task's own split, and answers everybody. In a *deployment* (a SuperNode on a data owner's host) the data owner's
node configuration decides (`fedprivacy.flower.client.node`): whose word counts, the task, the budget. Which of the two
it is, the client finds out from its own process and node configuration, never from the server.
"""

from __future__ import annotations

import sys
from functools import lru_cache

from flwr.app import Context, Message
from flwr.app.user_config import UserConfig

from fedprivacy.flower.client.local import IN_PROCESS, LocalClient, open_deployed, open_simulated
from fedprivacy.flower.client.node import NodeSettings, Refused
from fedprivacy.flower.client.received import request_in
from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.flower.wire.messages import Grant, RefusalCode
from fedprivacy.runs.configuration import RunConfig, Value, resolve
from fedprivacy.tasks import Task, load_task
from fedprivacy.tasks.built_in import DEFAULT_TASK


def client_to_enrol(
    message: Message, context: Context, task: Task | None = None, config: RunConfig | None = None
) -> LocalClient:
    """The client that a server asks who it is; in a deployment it says not a word to any but the data owner's server.

    Args:
        message: the request, signed in a deployment.
        context: Flower's.
        task: that the app brings; None: the one that the run names, if the data owner allows it.
        config: of the run; None: the run-config in the context.

    Raises:
        Refused: the server is another one, or the node configuration does not allow what the run names.
        LogError: the guard cannot be used.
    """
    owner = _owner(context)
    if owner is not None:
        try:
            owner.check_enrolment(request_in(message), context.run_id)
        except MessageError as error:
            raise Refused(RefusalCode.ENROLMENT_INVALID, str(error)) from error
    return _opened(owner, context, task, config)


def client_for(
    grant: Grant, context: Context, task: Task | None = None, config: RunConfig | None = None
) -> LocalClient:
    """The client that a grant is for, once the grant is held against what the data owner decided; else as above.

    Raises:
        MessageError: the data owner does not accept the grant. No record has been read.
    """
    owner = _owner(context)
    if owner is not None:
        owner.check_grant(grant)
    return _opened(owner, context, task, config)


def _owner(context: Context) -> NodeSettings | None:
    """What the data owner decided; None in a simulation."""
    return None if _is_simulated(context.node_config) else NodeSettings.of(context.node_config)


def _opened(owner: NodeSettings | None, context: Context, task: Task | None, config: RunConfig | None) -> LocalClient:
    if owner is None:
        settings = config or _resolve_once(tuple(context.run_config.items()), task)
        return open_simulated(task or load_task(settings.task), settings, context.node_config)
    named = config.public() if config else context.run_config
    if named.get("seed") not in (None, ""):
        raise Refused(RefusalCode.SEED_IN_DEPLOYMENT, "seed is set: whoever knows it can subtract the noise.")
    return open_deployed(owner.task(named.get("task") or DEFAULT_TASK, task), owner)


def _is_simulated(node: UserConfig) -> bool:
    """Whether this process simulates the client: in our in-process engine, or in a worker of Ray."""
    ray = sys.modules.get("ray")
    return "partition-id" in node and (IN_PROCESS in node or (ray is not None and ray.is_initialized()))


@lru_cache(maxsize=16)
def _resolve_once(run_config: tuple[tuple[str, Value], ...], task: Task | None) -> RunConfig:
    return resolve(dict(run_config), task)
