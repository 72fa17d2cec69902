"""The ClientApp: enrols, and trains with DP-SGD against a grant."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedprivacy.adaptive import QuantileClipping
from fedprivacy.config import RunConfig, Value, resolve
from fedprivacy.dpsgd import DPSGD, PrivateUpdate
from fedprivacy.flower import release
from fedprivacy.flower.local import LocalClient, Refused, open_client
from fedprivacy.flower.records import ENROL, GRANT, Grant, RecordError, RefusalCode
from fedprivacy.gradients import trainable_parameters
from fedprivacy.odometer import BudgetExhaustedError
from fedprivacy.tasks import Task, load_task

log = logging.getLogger("fedprivacy.client")

_ADAPTED = "fedprivacy.adapted"
"""Where the client keeps, from round to round, the clipping norm that adaptive clipping has arrived at."""


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
            return release.enrolment(message, client.client_id, client.public_shard_size, client.num_partitions)
        except Exception as error:
            return _refuse(message, error)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            grant = Grant.from_record(_config_record(message, GRANT))
            client = open_client(*configured(context), context)
            released = _spend(client, grant, message, _training(grant, message, context.state))
            context.state[_ADAPTED] = ConfigRecord({"run-id": grant.run_id, "clipping-norm": released.clipping_norm})
            return release.update(message, grant, released)
        except Exception as error:
            return _refuse(message, error)

    return app


@lru_cache(maxsize=16)
def _resolve_once(run_config: tuple[tuple[str, Value], ...], task: Task | None) -> RunConfig:
    return resolve(dict(run_config), task)


def _spend(client: LocalClient, grant: Grant, message: Message, training: DPSGD) -> PrivateUpdate:
    """Prepare, charge the client's own odometer, then read records: a crash in between can only over-count."""
    engine = client.engine(grant.clipping)
    engine.model.load_state_dict(_global_parameters(message, engine.model), strict=False)
    engine.prepare(client.shard.inputs[:0], client.shard.targets[:0])
    if client.odometer is not None:
        client.odometer.charge(grant.run_id, grant.round, grant.event, grant.steps)
    keystream = client.keystream(grant.earlier_runs)
    released = training.train(engine, client.shard, steps=grant.steps, round=grant.round, keystream=keystream)
    if client.odometer is not None:
        client.odometer.commit(grant.run_id, grant.round)
    return released


def _training(grant: Grant, message: Message, state: RecordDict) -> DPSGD:
    """What the grant allows."""
    adaptive = QuantileClipping() if grant.clipping == "adaptive" else None
    norm = _adapted_norm(state, grant) if adaptive else grant.mechanism.clipping_norm
    return DPSGD(
        mechanism=replace(grant.mechanism, clipping_norm=norm),
        expected_batch_size=grant.expected_batch_size,
        optimizer=grant.local_optimizer,
        proximal_mu=_proximal_mu(message),
        adaptive=adaptive,
    )


def _adapted_norm(state: RecordDict, grant: Grant) -> float:
    """Where adaptive clipping had arrived after this run's last round on this client; at first the grant's."""
    kept = state.config_records.get(_ADAPTED, ConfigRecord())
    norm = kept.get("clipping-norm") if kept.get("run-id") == grant.run_id else None
    return norm if isinstance(norm, float) else grant.mechanism.clipping_norm


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
        case RecordError():
            code = RefusalCode.GRANT_INVALID
        case _:
            code = RefusalCode.CLIENT_FAILED
    log.error("This client sends no update (%s).", code, exc_info=error)
    return release.refusal(message, code)
