"""A trial of a task on the machine that simulates it, before any budget is spent.

Each method of the task that the run needs is called once, and a failure is reported in full: method, client, file and
line. Only simulations do this: a deployed client sends one constant code, whatever went wrong.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.client.local import engine_of, simulated_shard, views_of, works_on
from fedprivacy.flower.client.node import Refused
from fedprivacy.gradients import LossShapeError, UnsupportedModelError
from fedprivacy.gradients.methods import warn_of
from fedprivacy.questions.moments import Spread
from fedprivacy.questions.standardise import standardise_question, standardiser, why_unsuited
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.runs.settings.device import autocast_of
from fedprivacy.tasks import Shard, ShardSource, TaskError
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.tasks.sheet import collecting_sheets, tell
from fedprivacy.training.batches import AugmentationError
from fedprivacy.training.machine import Machine

log = logging.getLogger(__name__)

_RECORDS = 2
"""Number of records that go through model and loss; two, because the loss must give each its own value."""


def try_task(task: OpenedTask, config: RunConfig, clients: Iterable[int]) -> None:
    """Open clients' shards, put the first one's records through model and loss, and evaluate a new model.

    Global random generators are restored afterwards, so that a trial changes no run.

    Args:
        task: the task that will be trained.
        config: the simulation's configuration.
        clients: the parts of the split to open; the shards stay open for the run.

    Raises:
        TaskError: names the method that fails, the client, and the cause.
    """
    before = RandomState.now()
    question = standardise_question(task)
    try:
        model = task.model()
        for number, partition_id in enumerate(clients):
            shard = _standardise(task, question, opened_shard(task, config, partition_id))
            if number == 0:
                client = simulated_client_id(partition_id, config.clients)
                _try_training(task, model, shard, client, evaluates=config.local_evaluation > 0)
                _try_views(task, shard, config.augmentation_multiplicity)
        if question is not None and config.privacy:
            try_table(task, config, question.columns)
        measured = (model if question is None else nn.Sequential(standardiser(question), model)).eval()
        if bad := [name for name, value in task.evaluate(measured).items() if math.isnan(value)]:
            log.warning(
                "task %s: evaluate() returns no number for %s; see that it has records. Nothing is spent yet.",
                task.name,
                ", ".join(bad),
            )
        _measured_by_client(task, measured, config.clients)
    finally:
        before.restore()


def machine_for(task: OpenedTask, config: RunConfig, device: torch.device, *, stacked: bool) -> Machine:
    """This machine, and how it will compute the gradients of the first client's records; no value of them is read.

    Warns, once in a process, where that is slow. In this process it is decided only once, for all clients.

    Args:
        task: as `try_task` has tried it.
        config: of a simulation with privacy, by which this process opens shards.
        device: the device on which clients train.
        stacked: whether clients train together, in stacks if their model is one for that.
    """
    inputs, targets = opened_shard(task, config, 0).blank
    blank = inputs.to(device), targets.to(device)
    views = max(config.augmentation_multiplicity, 1)
    engine = engine_of(task, blank[0].device, config.clipping, views, autocast_of(config.autocast))
    stacked = stacked and engine.stack(*blank) is not None
    if not stacked:
        engine.prepare(*blank)
        warn_of(engine.method, engine.obstacle)
    return Machine.here(engine, stacked=stacked)


def try_table(task: OpenedTask, config: RunConfig, columns: Iterable[str]) -> None:
    """Open the first client's table, and see that it has the columns that questions look at.

    Raises:
        TaskError: says what is missing.
    """
    table = task.table(ShardSource(partition_id=0, num_partitions=config.clients))
    if unknown := sorted(set(columns) - table.columns.keys()):
        raise TaskError(
            f"task {task.name}: the table has no column {', '.join(unknown)}; it has {', '.join(table.columns)}."
        )


def _standardise(task: OpenedTask, question: Spread | None, shard: Shard) -> Shard:
    """Return a few records of a shard, standardised by the question's bounds alone."""
    if question is None:
        return shard
    if why := why_unsuited(shard.blank[0], question.reads):
        raise TaskError(f"task {task.name} standardises its inputs, and {why}.")
    few = shard.inputs[:_RECORDS].cpu(), shard.targets[:_RECORDS].cpu()
    return shard.of_records(standardiser(question)(few[0]), few[1])


def opened_shard(task: OpenedTask, config: RunConfig, partition_id: int) -> Shard:
    """A simulated client's shard, which stays open for the life of the process.

    Raises:
        TaskError: says why the task cannot open it.
    """
    client = simulated_client_id(partition_id, config.clients)
    try:
        with task.calling(f"shard() for {client}"), _tables_told():
            try:
                return simulated_shard(task, partition_id, config.clients, config.device)
            except Refused as error:
                raise error.__cause__ or error from None
    except TaskError as error:
        if partition_id:
            error.add_note(
                f"{client} holds part {partition_id + 1} of {config.clients}: if the records are split into fewer, "
                "lower clients."
            )
        raise


@contextmanager
def _tables_told() -> Iterator[None]:
    """Tell of tables' cells alone: of records, `check_shards` gives the numbers of all clients together."""
    try:
        with collecting_sheets() as sheets:
            yield
    finally:
        for sheet in sheets:
            if sheet.unreadable:
                tell(sheet, whole=False)


def _measured_by_client(task: OpenedTask, model: nn.Module, clients: int) -> None:
    """Measure a model on the first client's held-out records, where the task holds some out."""
    if not task.offers("held_out"):
        return
    records = task.held_out(ShardSource(partition_id=0, num_partitions=clients))
    if len(records.inputs):
        with task.calling("the model on held-out records"), torch.no_grad():
            outputs = model(records.inputs)
        task.check_scores(outputs[:_RECORDS], records.targets[:_RECORDS])
        task.held_out_metrics(model, records)


def _try_views(task: OpenedTask, shard: Shard, multiplicity: int) -> None:
    """Make views of made-up records of a shard's kind, if there are to be any."""
    if multiplicity:
        try:
            inputs, _ = shard.blank
            views_of(task, multiplicity, inputs.device, (inputs.shape[1:], inputs.dtype))
        except AugmentationError as error:
            raise TaskError(f"task {task.name}: {error}.") from error


def _try_training(task: OpenedTask, model: nn.Module, shard: Shard, client: str, *, evaluates: bool) -> None:
    """Forward pass and loss of a few records; on the CPU, where a label out of range does not end the process."""
    some = shard.of_records(shard.inputs[:_RECORDS].cpu(), shard.targets[:_RECORDS].cpu()).by_row()
    inputs, targets = some.inputs, some.targets
    if len(inputs):
        with task.calling(f"the model on records of {client}, shape {list(inputs.shape)},"):
            outputs = model(inputs)
        with task.calling(f"loss() for {client}"):
            task.loss(outputs, targets)
        if evaluates:
            task.check_scores(outputs.detach(), targets)
    try:
        works_on(task, shard)
    except (LossShapeError, UnsupportedModelError) as error:
        raise TaskError(f"task {task.name}: {error}") from error
