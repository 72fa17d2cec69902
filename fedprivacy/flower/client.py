"""The ClientApp: enrols, and trains with DP-SGD against a grant."""

from __future__ import annotations

import logging
from functools import lru_cache

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedprivacy.accounting import MechanismChanged
from fedprivacy.adaptive import QuantileClipping
from fedprivacy.allocator import keep_freed_memory
from fedprivacy.config import RunConfig, Value, resolve
from fedprivacy.dpsgd import DPSGD
from fedprivacy.events import Claims, PoissonSampledGaussian
from fedprivacy.failpoints import reach
from fedprivacy.flower import release
from fedprivacy.flower.histories import history_of
from fedprivacy.flower.local import LocalClient, Refused, open_client
from fedprivacy.flower.records import ENROL, GRANT, Grant, RefusalCode
from fedprivacy.flower.release import Released
from fedprivacy.flower.wire import RecordError
from fedprivacy.gradients import trainable_parameters
from fedprivacy.odometer import (
    AlreadyChargedError,
    BudgetExhaustedError,
    ChargeKey,
    ForeignGrantError,
    InvalidGrantError,
    LogError,
    Odometer,
)
from fedprivacy.tasks import Task, load_task

log = logging.getLogger("fedprivacy.client")


def private_client(task: Task | None = None, config: RunConfig | None = None) -> ClientApp:
    """A Flower ClientApp whose every reply is differentially private or public.

    Formal guarantee: see `fedprivacy.dpsgd` for an update and `fedprivacy.flower.release` for what else can leave.

    Args:
        task: model, loss and data; None: the task that the run's configuration names.
        config: the run's configuration; None: the run-config that Flower hands to the client.
    """
    app = ClientApp()

    def configured(context: Context) -> tuple[Task, RunConfig]:
        settings = config or _resolve_once(tuple(context.run_config.items()), task)
        return task or load_task(settings.task), settings

    @app.query(ENROL.removeprefix(f"{MessageType.QUERY}."))
    def enrol(message: Message, context: Context) -> Message:
        try:
            client = open_client(*configured(context), context)
            size, partitions = client.public_shard_size, client.num_partitions
            return release.enrolment(message, client.client_id, size, partitions, _claims(client))
        except Exception as error:
            return _refuse(message, error)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            grant = Grant.from_record(_config_record(message, GRANT))
            reach("client.asked")
            client = open_client(*configured(context), context)
            released = _answer(client, grant, message)
            reach("client.replying")
            return release.update(message, released)
        except Exception as error:
            return _refuse(message, error)

    return app


@lru_cache(maxsize=16)
def _resolve_once(run_config: tuple[tuple[str, Value], ...], task: Task | None) -> RunConfig:
    return resolve(dict(run_config), task)


def _claims(client: LocalClient) -> Claims:
    """What the client's own odometer holds of grants."""
    if client.guard is None:
        return {}
    runs = client.guard.odometer.by_run()
    charged = ((run, event, steps) for run, events in runs.items() for event, steps in events.items())
    return {(run, event): steps for run, event, steps in charged if isinstance(event, PoissonSampledGaussian)}


def _answer(client: LocalClient, grant: Grant, message: Message) -> Released:
    """What was sealed for this grant before, or what it lets this client train.

    Prepare, charge the client's own odometer, read records, seal: a crash in between can only over-count.
    """
    guard, key = client.guard, ChargeKey(grant.run_id, grant.round, grant.attempt)
    if guard is not None:
        guard.check(grant)
        sealed = guard.odometer.sealed(key, run_key=grant.server_key)
        if sealed is not None:
            return Released.unsealed(sealed)
    keep_freed_memory()
    engine = client.engine(grant.clipping)
    engine.model.load_state_dict(_global_parameters(message, engine.model), strict=False)
    engine.prepare(client.shard.inputs[:0], client.shard.targets[:0])
    if guard is not None:
        charged = history_of(grant.charged)
        guard.odometer.charge(key, grant.event, grant.steps, run_key=grant.server_key, elsewhere=charged)
        reach("client.charged")
    keystream = client.keystream(grant)
    training = _training(grant, message)
    trained = training.train(engine, client.shard, steps=grant.steps, round=grant.round, keystream=keystream)
    reach("client.trained")
    released = Released.of(grant, trained, guard.key if guard else None)
    if guard is not None:
        _seal(guard.odometer, key, released)
    return released


def _seal(odometer: Odometer, key: ChargeKey, released: Released) -> None:
    """Keep what is about to leave. What cannot be kept does not leave: records were read, so the charge stands."""
    try:
        odometer.seal(key, released.sealed())
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
        adaptive=QuantileClipping() if grant.clipping == "adaptive" else None,
    )


def _global_parameters(message: Message, model: nn.Module) -> dict[str, Tensor]:
    arrays = message.content.get(release.ARRAYS)
    own = trainable_parameters(model)
    received = arrays.to_torch_state_dict() if isinstance(arrays, ArrayRecord) else {}
    if {name: tensor.shape for name, tensor in received.items()} != {name: p.shape for name, p in own.items()}:
        raise RecordError("The global model does not have this task's parameters; use the same task on both sides.")
    return dict(received)


def _proximal_mu(message: Message) -> float:
    """What Flower's FedProx puts into its messages; 0 from every other strategy."""
    value = _config_record(message, "config").get("proximal-mu", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _config_record(message: Message, name: str) -> ConfigRecord:
    record = message.content.get(name, ConfigRecord())
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
            code = RefusalCode.ODOMETER_UNUSABLE
        case RecordError() | ForeignGrantError() | InvalidGrantError() | MechanismChanged():
            code = RefusalCode.GRANT_INVALID
        case _:
            code = RefusalCode.CLIENT_FAILED
    log.error("This client sends no update (%s).", code, exc_info=error)
    return release.refusal(message, code)
