"""The ClientApp: enrols, and trains with DP-SGD against a grant."""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedprivacy._support.allocator import keep_freed_memory
from fedprivacy._support.failpoints import reach
from fedprivacy.accounting import MechanismChanged
from fedprivacy.flower.client import release
from fedprivacy.flower.client.local import LocalClient, is_simulated, open_deployed, open_simulated
from fedprivacy.flower.client.node import NodeSettings, Refused
from fedprivacy.flower.client.release import Released
from fedprivacy.flower.wire.arrays import ArraysError, Form, checked_arrays
from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.flower.wire.histories import history_of
from fedprivacy.flower.wire.messages import ENROL, ENROLMENT_REQUEST, GRANT, EnrolmentRequest, Grant, RefusalCode
from fedprivacy.gradients import trainable_parameters
from fedprivacy.guard import (
    AlreadyChargedError,
    BudgetExhaustedError,
    ChargeKey,
    ForeignGrantError,
    Guard,
    InvalidGrantError,
    LogError,
)
from fedprivacy.runs.configuration import RunConfig, Value, resolve
from fedprivacy.tasks import Task, load_task
from fedprivacy.tasks.built_in import DEFAULT_TASK
from fedprivacy.tasks.loading import agreed
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE
from fedprivacy.values.events import Claims, PoissonSampledGaussian

log = logging.getLogger("fedprivacy.client")


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

    @app.query(ENROL.removeprefix(f"{MessageType.QUERY}."))
    def enrol(message: Message, context: Context) -> Message:
        try:
            owner = _owner(context)
            if owner is not None:
                _check_request(owner, message, context)
            client = opened(owner, context)
            size, partitions = client.public_shard_size, client.num_partitions
            return release.enrolment(message, client.client_id, size, partitions, _claims(client))
        except Exception as error:
            return _refuse(message, error)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            grant = Grant.from_record(_config_record(message, GRANT))
            reach("client.asked")
            owner = _owner(context)
            if owner is not None:
                owner.check_grant(grant)
            released = _answer(opened(owner, context), grant, message)
            reach("client.replying")
            return release.update(message, released)
        except Exception as error:
            return _refuse(message, error)

    def opened(owner: NodeSettings | None, context: Context) -> LocalClient:
        if owner is None:
            settings = config or _resolve_once(tuple(context.run_config.items()), task)
            return open_simulated(task or load_task(settings.task), settings, context.node_config)
        named = config.public() if config else context.run_config
        if named.get("seed") not in (None, ""):
            raise Refused(RefusalCode.SEED_IN_DEPLOYMENT, "seed is set: whoever knows it can subtract the noise.")
        return open_deployed(owner.task(named.get("task") or DEFAULT_TASK, task), owner)

    return app


def _owner(context: Context) -> NodeSettings | None:
    """What the data owner decided; None in a simulation."""
    return None if is_simulated(context.node_config) else NodeSettings.of(context.node_config)


def _check_request(owner: NodeSettings, message: Message, context: Context) -> None:
    try:
        request = EnrolmentRequest.from_record(_config_record(message, ENROLMENT_REQUEST))
        owner.check_enrolment(request, context.run_id)
    except MessageError as error:
        raise Refused(RefusalCode.ENROLMENT_INVALID, str(error)) from error


@lru_cache(maxsize=16)
def _resolve_once(run_config: tuple[tuple[str, Value], ...], task: Task | None) -> RunConfig:
    return resolve(dict(run_config), task)


def _claims(client: LocalClient) -> Claims:
    """What the client's own guard holds of grants."""
    if client.guard is None:
        return {}
    runs = client.guard.by_run()
    charged = ((run, event, steps) for run, events in runs.items() for event, steps in events.items())
    return {(run, event): steps for run, event, steps in charged if isinstance(event, PoissonSampledGaussian)}


def _answer(client: LocalClient, grant: Grant, message: Message) -> Released:
    """What was sealed for this grant before, or what it lets this client train.

    Prepare, charge the client's own guard, read records, seal: a crash in between can only over-count. Whatever the
    server sent is checked before the charge.
    """
    client.check_relation(grant)
    guard, key = client.guard, ChargeKey(grant.run_id, grant.round, grant.attempt)
    if guard is not None:
        sealed = guard.sealed(key, run_key=grant.server_key)
        if sealed is not None:
            return Released.unsealed(sealed)
    training = _training(grant, message)
    keep_freed_memory()
    engine = client.engine(grant.clipping)
    engine.model.load_state_dict(_global_parameters(message, engine.model), strict=False)
    engine.prepare(client.shard.inputs[:0], client.shard.targets[:0])
    if guard is not None:
        charged = history_of(grant.charged)
        guard.charge(key, grant.event, grant.steps, run_key=grant.server_key, elsewhere=charged)
        reach("client.charged")
    keystream = client.keystream(grant)
    trained = training.train(engine, client.shard, steps=grant.steps, round=grant.round, keystream=keystream)
    reach("client.trained")
    released = Released.of(grant, trained, client.key)
    if guard is not None:
        _seal(guard, key, released)
    return released


def _seal(guard: Guard, key: ChargeKey, released: Released) -> None:
    """Keep what is about to leave. What cannot be kept does not leave: records were read, so the charge stands."""
    try:
        guard.seal(key, released.sealed())
    except LogError as error:
        raise RuntimeError("The update was trained and cannot be sealed.") from error
    reach("client.sealed")


def _training(grant: Grant, message: Message) -> DPSGD:
    """What the grant allows."""
    return DPSGD(
        mechanism=grant.mechanism,
        expected_batch_size=grant.expected_batch_size,
        optimizer=grant.local_optimizer,
        proximal_mu=_proximal_mu(message),
        adaptive=grant.adaptive,
    )


def _global_parameters(message: Message, model: nn.Module) -> dict[str, Tensor]:
    """The model that the server sends: the task's own parameters, each of its own type and shape, finite.

    Raises:
        MessageError: it is something else.
    """
    own = trainable_parameters(model)
    forms = {name: Form(tuple(p.shape), torch.empty(0, dtype=p.dtype).numpy().dtype) for name, p in own.items()}
    try:
        received = checked_arrays(message.content.get(release.ARRAYS), forms)
    except ArraysError as error:
        raise MessageError(f"The global model is not this task's ({error}); use one task on both sides.") from error
    return {name: torch.from_numpy(values) for name, values in received.items()}


def _proximal_mu(message: Message) -> float:
    """What Flower's FedProx puts into its messages; 0 from every other strategy.

    Raises:
        MessageError: it is no number, or none that can be multiplied with.
    """
    value = _config_record(message, "config").get("proximal-mu", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= LARGEST_LEARNING_RATE:
        raise MessageError(f"proximal-mu must be a number from 0 to {LARGEST_LEARNING_RATE:g}.")
    return float(value)


def _config_record(message: Message, name: str) -> ConfigRecord:
    record = message.content.get(name) if message.has_content() else None
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def _refuse(message: Message, error: Exception) -> Message:
    """A constant code leaves; what happened stays in this client's log."""
    match error:
        case Refused():
            code = error.code
        case BudgetExhaustedError():
            code = RefusalCode.BUDGET_EXHAUSTED
        case AlreadyChargedError():
            code = RefusalCode.ALREADY_CHARGED
        case LogError():
            code = RefusalCode.GUARD_UNUSABLE
        case MessageError() | ForeignGrantError() | InvalidGrantError() | MechanismChanged():
            code = RefusalCode.GRANT_INVALID
        case _:
            code = RefusalCode.CLIENT_FAILED
    log.error("This client sends no update (%s).", code, exc_info=error)
    return release.refusal(message, code)
