"""The ClientApp, and a client's way: what was asked, read and checked; guard, training, release."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedprivacy._support.allocator import keep_freed_memory
from fedprivacy._support.failpoints import reach
from fedprivacy._support.spans import span, spanned
from fedprivacy.accounting import MechanismChanged
from fedprivacy.flower.client import release
from fedprivacy.flower.client.local import LocalClient, client_for, client_to_enrol
from fedprivacy.flower.client.node import Refused
from fedprivacy.flower.client.release import ARRAYS, Released
from fedprivacy.flower.wire.checked_arrays import ArraysError, Form, checked_arrays
from fedprivacy.flower.wire.messages import ASK, ENROL, Grant, MessageError, QuestionGrant, RefusalCode
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.gradients.methods.obstacle import warn_of
from fedprivacy.guard import (
    AlreadyChargedError,
    BudgetExhaustedError,
    ForeignGrantError,
    InvalidGrantError,
    LogError,
    QuestionsExhaustedError,
)
from fedprivacy.mechanisms.keystream import Position
from fedprivacy.questions.release import GaussianAnswers
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import agreed
from fedprivacy.tasks.standardising import STANDARDISE
from fedprivacy.training.algorithms import Algorithm
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.local_round import CONTROL, Kept, personal_mask
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE

log = logging.getLogger("fedprivacy.client")

ENROL_ACTION, ASK_ACTION = (action.removeprefix(f"{MessageType.QUERY}.") for action in (ENROL, ASK))
"""What a ClientApp answers with who it is, and what its records are like: the actions of queries."""

Handler = Callable[[Message, Context], Message]


class TaskApp(ClientApp):
    """A ClientApp of one task and one configuration, from which a simulation can have many clients in one process.

    Attributes:
        task: what its clients learn; None: what the configuration names.
        config: the run's; None: what Flower hands to each client.
    """

    def __init__(self, task: Task | None, config: RunConfig | None) -> None:
        super().__init__()
        self.task, self.config = task, config


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
    app = TaskApp(task, config)

    @app.query(ENROL_ACTION)
    @refusing
    def enrol(message: Message, context: Context) -> Message:
        return release.enrolment(message, client_to_enrol(message, context, task, config).public_facts())

    @app.query(ASK_ACTION)
    @refusing
    def ask(message: Message, context: Context) -> Message:
        grant = questions_in(message)
        return release.update(message, answered(client_for(grant, context, task, config), grant))

    @app.train()
    @refusing
    def train(message: Message, context: Context) -> Message:
        grant = grant_in(message)
        return release.update(message, answer(client_for(grant, context, task, config), grant, message))

    return app


@spanned("reading the grant")
def grant_in(message: Message) -> Grant:
    """The grant that a message brings; `MessageError` if it brings none."""
    grant = Grant.of(message)
    reach("client.asked")
    return grant


def questions_in(message: Message) -> QuestionGrant:
    """The questions that a message brings, with what may be spent on them; `MessageError` if it brings none."""
    grant = QuestionGrant.of(message)
    reach("client.asked")
    return grant


def answer(client: LocalClient, grant: Grant, message: Message) -> Released:
    """What was sealed for this grant before, or what it lets this client train.

    Prepare, charge the client's own guard, read records, seal: a crash in between can only over-count. Whatever the
    server sent is checked before the charge.
    """
    client.check_relation(grant)
    released = client.released_before(grant)
    if released is None:
        standardise = client.standardising(message.content.get(STANDARDISE))
        training, engine, before = prepared(client, grant, message)
        measured = client.measured(engine, grant.local_algorithm, before) if grant.local_evaluation else None
        client.charge(grant)
        client = client.standardised(standardise)
        keystream = client.keystream(grant)
        evaluated = client.evaluated(grant, measured, keystream)  # before training moves the model
        steps, number = grant.training_steps, grant.round
        trained = training.train(engine, client.shard, steps=steps, round=number, keystream=keystream, before=before)
        reach("client.trained")
        client.keep(grant, trained.kept)
        released = Released.of(grant, trained, evaluated, client.key)
        client.seal(grant, released)
    reach("client.replying")
    return released


def answered(client: LocalClient, grant: QuestionGrant) -> Released:
    """What was sealed for this grant before, or what its questions release of this client's records.

    Whether the questions are allowed, and of a table that there is, is known before the charge.

    Raises:
        MessageError: other questions were answered for this attempt.
    """
    asked = grant.asked
    client.check_relation(grant)
    client.answerable.check(asked)
    released = client.released_before(grant)
    if released is None:
        table = client.table(asked)
        client.charge(grant)
        mechanism = GaussianAnswers(grant.event, client.answerable.smallest_cohort)
        answers = mechanism.release(asked, table, client.keystream(grant), Position(grant.round, 1))
        reach("client.trained")
        released = Released.of_answers(grant, mechanism.event, answers, client.key)
        client.seal(grant, released)
    elif not released.answers(grant):
        raise MessageError(f"{grant.charged_as} was charged for other questions, and they were answered.")
    reach("client.replying")
    return released


@spanned("preparing")
def prepared(client: LocalClient, grant: Grant, message: Message) -> tuple[DPSGD, GradientEngine, Kept]:
    """The training that a grant allows, what computes its gradients at the model that the server sends, and the past.

    Raises:
        MessageError: the message asks for what cannot be done.
        Refused: what the client kept of its last round is damaged.
    """
    training = DPSGD(
        mechanism=grant.mechanism,
        expected_batch_size=grant.expected_batch_size,
        optimizer=grant.local_optimizer,
        proximal_mu=proximal_mu(message),
        adaptive=grant.adaptive,
        algorithm=grant.local_algorithm,
        views=client.views(grant.augmentation_multiplicity),
    )
    keep_freed_memory()
    engine = client.engine(grant.clipping, grant.augmentation_multiplicity)
    engine.model.load_state_dict(global_parameters(message, engine.model), strict=False)
    with span("preparing gradients"):
        engine.prepare(client.shard.inputs[:0], client.shard.targets[:0])
    warn_of(engine.means, engine.obstacle)
    return training, engine, kept_before(client.before(grant), message, engine.model, grant.local_algorithm)


def kept_before(own: Tensor | None, message: Message, model: nn.Module, algorithm: Algorithm) -> Kept:
    """What a round begins with besides the global model.

    Raises:
        MessageError: the server's control is not of the model's size; or the model has none of the layers that the
            algorithm has each client keep; or what the client kept is another model's.
    """
    size = sum(parameter.numel() for parameter in trainable_parameters(model).values())
    try:
        _ = personal_mask(algorithm, model)
        record = message.content.get(CONTROL) if algorithm.server is not None else None
        control = checked_arrays(record, {CONTROL: Form((size,), np.dtype(np.float32))}) if record is not None else {}
    except (ArraysError, ValueError) as error:
        raise MessageError(f"The grant's algorithm does not fit this task's model ({error}).") from error
    if own is not None and own.shape != (size,):
        raise MessageError("What this client kept of its last round is of another model.")
    return Kept(own, torch.from_numpy(control[CONTROL]) if control else None)


@spanned("reading the model")
def global_parameters(message: Message, model: nn.Module) -> dict[str, Tensor]:
    """The model that the server sends: the task's own parameters, each of its own type and shape, finite.

    Raises:
        MessageError: it is something else.
    """
    own = trainable_parameters(model)
    forms = {name: Form(tuple(p.shape), torch.empty(0, dtype=p.dtype).numpy().dtype) for name, p in own.items()}
    try:
        received = checked_arrays(message.content.get(ARRAYS), forms)
    except ArraysError as error:
        raise MessageError(f"The global model is not this task's ({error}); use one task on both sides.") from error
    return {name: torch.from_numpy(values) for name, values in received.items()}


def proximal_mu(message: Message) -> float:
    """What Flower's FedProx puts into its messages; 0 from every other strategy.

    Raises:
        MessageError: it is no number, or none that can be multiplied with.
    """
    settings = message.content.get("config")
    value = settings.get("proximal-mu", 0.0) if isinstance(settings, ConfigRecord) else 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= LARGEST_LEARNING_RATE:
        raise MessageError(f"proximal-mu must be a number from 0 to {LARGEST_LEARNING_RATE:g}.")
    return float(value)


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
    if isinstance(error, Refused):
        return error.code
    return next((code for kinds, code in _CODES.items() if isinstance(error, kinds)), RefusalCode.CLIENT_FAILED)


_CODES = {
    (QuestionsExhaustedError,): RefusalCode.QUESTIONS_EXHAUSTED,
    (BudgetExhaustedError,): RefusalCode.BUDGET_EXHAUSTED,
    (AlreadyChargedError,): RefusalCode.ALREADY_CHARGED,
    (LogError,): RefusalCode.GUARD_UNUSABLE,
    (MessageError, ForeignGrantError, InvalidGrantError, MechanismChanged): RefusalCode.GRANT_INVALID,
}
"""What crosses for each kind of error; of the kinds that fit, the first."""
