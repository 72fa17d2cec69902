"""The ClientApp, and the path of a request through a client: parse, check, guard, train, release.

Numbers are checked when the message is opened. Arrays cannot be: their form depends on the client's own task. They stay
as received until `parameters_for` and `control_for` have checked them against the client's model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedprivacy._support.failpoints import reach
from fedprivacy._support.logs import about, also_about, follow_environment
from fedprivacy._support.native import keep_freed_memory
from fedprivacy.accounting import MechanismChanged
from fedprivacy.flower.client import release
from fedprivacy.flower.client.local import LocalClient, client_for, client_to_enrol
from fedprivacy.flower.client.node import Refused
from fedprivacy.flower.client.release import ARRAYS, Released
from fedprivacy.flower.wire.messages import ASK, ENROL, Grant, MessageError, QuestionGrant, RefusalCode, WireMessage
from fedprivacy.flower.wire.payloads import ArraysError, Form, checked_arrays
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.gradients.methods import warn_of
from fedprivacy.guard import (
    AlreadyChargedError,
    BudgetExhaustedError,
    InvalidGrantError,
    LogError,
    NoRoomError,
    QuestionsExhaustedError,
)
from fedprivacy.mechanisms.keystream import Position
from fedprivacy.questions.release import GaussianAnswers
from fedprivacy.questions.standardise import STANDARDISE
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.tasks import Task
from fedprivacy.tasks.loader import open_task
from fedprivacy.training.algorithms import Algorithm
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.local_round import CONTROL, Kept, personal_mask
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE

log = logging.getLogger("fedprivacy.client")

ENROL_ACTION, ASK_ACTION = (action.removeprefix(f"{MessageType.QUERY}.") for action in (ENROL, ASK))
"""Query actions that a ClientApp answers with its enrolment, and with answers about its records."""

Handler = Callable[[Message, Context], Message]

Asks = TypeVar("Asks", bound=WireMessage)


class TaskApp(ClientApp):
    """A ClientApp of one task and one configuration, from which a simulation can have many clients in one process.

    Attributes:
        task: the task that its clients learn; None: the one that the configuration names.
        config: the run's configuration; None: the run-config that Flower hands to each client.
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
    follow_environment()
    if task is not None:
        task = open_task(config.task if config else None, task)
    app = TaskApp(task, config)

    @app.query(ENROL_ACTION)
    @refusing
    def enrol(message: Message, context: Context) -> Message:
        return release.enrolment(message, client_to_enrol(message, context, task, config).public_facts())

    @app.query(ASK_ACTION)
    @refusing
    def ask(message: Message, context: Context) -> Message:
        grant = questions_in(message)
        also_about(run=grant.run_id, round=grant.round)
        return release.update(message, answer_questions(client_for(grant, context, task, config), grant))

    @app.train()
    @refusing
    def train(message: Message, context: Context) -> Message:
        request = training_in(message)
        also_about(run=request.grant.run_id, round=request.grant.round)
        return release.update(message, answer(client_for(request.grant, context, task, config), request))

    return app


def answer(client: LocalClient, request: TrainingRequest[Grant]) -> Released:
    """Train what a grant lets this client train; if that was done and sealed before, send it again.

    Whatever the server sent is checked before the charge, and the room on the disk is held. Charge the client's own
    guard, read records, seal: a crash in between can only over-count.
    """
    grant = request.grant
    client.check_promise(grant)
    if (sealed := client.released_before(grant)) is not None:
        return sealed
    standardise = client.standardising(request.standardise)
    training, engine, before = prepare_training(client, request)
    measured = client.record_scores(engine, grant.local_algorithm, before) if grant.local_evaluation else None
    with client.room_for_round(grant, engine.model) as room:
        client.charge(grant)
        client = client.with_standardised_inputs(standardise)  # the first look at a record
        keystream = client.keystream(grant)
        evaluated = client.release_evaluation(grant, measured, keystream)  # before training moves the model
        steps, number = grant.training_steps, grant.round
        trained = training.train(engine, client.shard, steps=steps, round=number, keystream=keystream, before=before)
        reach("client.trained")
        client.keep(grant, trained.kept, room)
        released = Released.of(grant, trained, evaluated, client.key)
        client.seal(grant, released, room)
    return released


def answer_questions(client: LocalClient, grant: QuestionGrant) -> Released:
    """Answer a grant's questions of this client's records; if that was done and sealed before, send it again.

    Whether the questions are allowed, and of a table that there is, is known before the charge.

    Raises:
        MessageError: other questions were answered for this attempt.
    """
    asked = grant.questionnaire
    client.check_promise(grant)
    client.answerable.check(asked)
    if (sealed := client.released_before(grant)) is not None:
        if not sealed.answers(grant):
            raise MessageError(f"{grant.charged_as} was charged for other questions, and they were answered.")
        return sealed
    table = client.table(asked)
    with client.room_for_answers(asked) as room:
        client.charge(grant)
        mechanism = GaussianAnswers(grant.event, client.answerable.smallest_cohort)
        answers = mechanism.release(asked, table, client.keystream(grant), Position(grant.round, 1))
        reach("client.trained")
        released = Released.from_answers(grant, mechanism.event, answers, client.key)
        client.seal(grant, released, room)
    return released


def prepare_training(client: LocalClient, request: TrainingRequest[Grant]) -> tuple[DPSGD, GradientEngine, Kept]:
    """The training that a grant allows, what computes its gradients at the model that the server sends, and the past.

    Raises:
        MessageError: the message asks for what cannot be done.
        Refused: what the client kept of its last round is damaged, or memory is too small for the model.
    """
    grant = request.grant
    training = DPSGD(
        gradient=NoisyMean(
            grant.mechanism, grant.expected_batch_size, grant.adaptive, client.views(grant.augmentation_multiplicity)
        ),
        optimizer=grant.local_optimizer,
        proximal_mu=request.proximal_mu,
        algorithm=grant.local_algorithm,
    )
    keep_freed_memory()
    engine = client.engine(grant.clipping, grant.augmentation_multiplicity)
    client.check_memory(engine)
    engine.model.load_state_dict(request.parameters_for(engine.model), strict=False)
    engine.prepare(*client.shard.blank, training.gradient.usual_batch)
    warn_of(engine.method, engine.obstacle)
    return training, engine, kept_before(client.before(grant), request, engine.model, grant.local_algorithm)


def kept_before(own: Tensor | None, request: TrainingRequest[Asks], model: nn.Module, algorithm: Algorithm) -> Kept:
    """Return the vectors that a round begins with besides the global model.

    Raises:
        MessageError: the server's control is not of the model's size; or the model has none of the layers that the
            algorithm lets each client keep; or the client's kept vector is of another model.
    """
    size = sum(parameter.numel() for parameter in trainable_parameters(model).values())
    try:
        _ = personal_mask(algorithm, model)
        control = request.control_for(size) if algorithm.server is not None else None
    except (ArraysError, ValueError) as error:
        raise MessageError(f"The grant's algorithm does not fit this task's model ({error}).") from error
    if own is not None and own.shape != (size,):
        raise MessageError("What this client kept of its last round is of another model.")
    return Kept(own, control)


def refusing(handler: Handler) -> Handler:
    """Wrap a handler to answer an error with a constant code; the details stay in this client's log."""

    @wraps(handler)
    def guarded(message: Message, context: Context) -> Message:
        with about():
            try:
                reply = handler(message, context)
                log.info("This client answers (%s).", message.metadata.message_type)
                return reply
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
    (NoRoomError,): RefusalCode.NO_ROOM,
    (LogError,): RefusalCode.GUARD_UNUSABLE,
    (MessageError, InvalidGrantError, MechanismChanged): RefusalCode.GRANT_INVALID,
}
"""Refusal codes by kinds of error; the first kind that fits counts."""


def training_in(message: Message) -> TrainingRequest[Grant]:
    """Open a message that asks for training.

    Raises:
        MessageError: it brings no grant, or a number in it is out of bounds.
    """
    request = TrainingRequest.of(message, Grant)
    reach("client.asked")
    return request


def questions_in(message: Message) -> QuestionGrant:
    """Open a message that asks questions: its grant is all of it.

    Raises:
        MessageError: it brings none, or one that is out of bounds.
    """
    grant = QuestionGrant.of(message)
    reach("client.asked")
    return grant


@dataclass(frozen=True, slots=True)
class TrainingRequest(Generic[Asks]):
    """A request for local training: the grant, and the model to begin with.

    Attributes:
        grant: the allowed spending, and the settings of training.
        proximal_mu: FedProx's pull, from 0 to `LARGEST_LEARNING_RATE`; 0 from every other strategy.
        arrays: the global model, as received.
        standardise: the numbers by which inputs are standardised, as received; None: there are none.
        control: the vector of the algorithm's server half, as received; None: nothing.
    """

    grant: Asks
    proximal_mu: float
    arrays: object
    standardise: object
    control: object

    @classmethod
    def of(cls, message: Message, kind: type[Asks]) -> Self:
        """Open a message; raises `MessageError` as `training_in` does.

        Args:
            message: from the server.
            kind: of record that says what is asked.
        """
        grant = kind.of(message)
        arrays, standardise, control = (message.content.get(name) for name in (ARRAYS, STANDARDISE, CONTROL))
        return cls(grant, _proximal_mu(message.content.get("config")), arrays, standardise, control)

    def parameters_for(self, model: nn.Module) -> dict[str, Tensor]:
        """The global model: the parameters of this client's own, each of its type and shape, finite.

        Raises:
            MessageError: the server sent something else.
        """
        own = trainable_parameters(model)
        forms = {name: Form(tuple(p.shape), torch.empty(0, dtype=p.dtype).numpy().dtype) for name, p in own.items()}
        try:
            received = checked_arrays(self.arrays, forms)
        except ArraysError as error:
            raise MessageError(f"The global model is not this task's ({error}); use one task on both sides.") from error
        return {name: torch.from_numpy(values) for name, values in received.items()}

    def control_for(self, size: int) -> Tensor | None:
        """The control of a model with so many parameters, shape [size]; None: the server sent none.

        Raises:
            ArraysError: the server sent something else.
        """
        if self.control is None:
            return None
        received = checked_arrays(self.control, {CONTROL: Form((size,), np.dtype(np.float32))})
        return torch.from_numpy(received[CONTROL])


def _proximal_mu(settings: object) -> float:
    """The value that Flower's FedProx puts into its messages."""
    value = settings.get("proximal-mu", 0.0) if isinstance(settings, ConfigRecord) else 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= LARGEST_LEARNING_RATE:
        raise MessageError(f"proximal-mu must be a number from 0 to {LARGEST_LEARNING_RATE:g}.")
    return float(value)
