"""The ClientApp, and a client's way: grant, guard, training, release."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from fedprivacy._support.failpoints import reach
from fedprivacy.accounting import MechanismChanged
from fedprivacy.flower.client import release
from fedprivacy.flower.client.local import LocalClient
from fedprivacy.flower.client.node import Refused
from fedprivacy.flower.client.place import client_for, client_to_enrol
from fedprivacy.flower.client.received import grant_in, prepared
from fedprivacy.flower.client.release import Released
from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.flower.wire.messages import ENROL, Grant, RefusalCode
from fedprivacy.guard import AlreadyChargedError, BudgetExhaustedError, ForeignGrantError, InvalidGrantError, LogError
from fedprivacy.runs.configuration import RunConfig
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import agreed

log = logging.getLogger("fedprivacy.client")

ENROL_ACTION = ENROL.removeprefix(f"{MessageType.QUERY}.")
"""What a ClientApp answers with who it is: the action of a query."""

Handler = Callable[[Message, Context], Message]


def private_client(task: Task | None = None, config: RunConfig | None = None) -> ClientApp:
    """A Flower ClientApp whose every reply is differentially private or public.

    Formal guarantee: see `fedprivacy.training.dpsgd` for an update and `fedprivacy.flower.client.release` for what else
    can leave.

    >>> import fedprivacy as fp
    >>> app = fp.private_client(fp.tasks.Cancer())  # the `clientapp` of a Flower app

    Args:
        task: model, loss and data; None: in a simulation the task that the run's configuration names, in a deployment
            one that the node configuration allows.
        config: the run's configuration; None: the run-config that Flower hands to the client.

    Raises:
        TaskError: the object is no task, or the configuration names another one.
    """
    if task is not None:
        agreed(config.task if config else None, task)
    app = ClientApp()

    @app.query(ENROL_ACTION)
    @refusing
    def enrol(message: Message, context: Context) -> Message:
        return release.enrolment(message, client_to_enrol(message, context, task, config).public_facts())

    @app.train()
    @refusing
    def train(message: Message, context: Context) -> Message:
        grant = grant_in(message)
        return release.update(message, answer(client_for(grant, context, task, config), grant, message))

    return app


def answer(client: LocalClient, grant: Grant, message: Message) -> Released:
    """What was sealed for this grant before, or what it lets this client train.

    Prepare, charge the client's own guard, read records, seal: a crash in between can only over-count. Whatever the
    server sent is checked before the charge.
    """
    client.check_relation(grant)
    released = client.released_before(grant)
    if released is None:
        training, engine = prepared(client, grant, message)
        client.charge(grant)
        keystream = client.keystream(grant)
        trained = training.train(engine, client.shard, steps=grant.steps, round=grant.round, keystream=keystream)
        reach("client.trained")
        released = Released.of(grant, trained, client.key)
        client.seal(grant, released)
    reach("client.replying")
    return released


def refusing(handler: Handler) -> Handler:
    """A handler that answers an error with a constant code; what happened stays in this client's log."""

    @wraps(handler)
    def guarded(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            code = _code(error)
            log.error("This client sends no update (%s).", code, exc_info=error)
            return release.refusal(message, code)

    return guarded


def _code(error: Exception) -> RefusalCode:
    match error:
        case Refused():
            return error.code
        case BudgetExhaustedError():
            return RefusalCode.BUDGET_EXHAUSTED
        case AlreadyChargedError():
            return RefusalCode.ALREADY_CHARGED
        case LogError():
            return RefusalCode.GUARD_UNUSABLE
        case MessageError() | ForeignGrantError() | InvalidGrantError() | MechanismChanged():
            return RefusalCode.GRANT_INVALID
    return RefusalCode.CLIENT_FAILED
