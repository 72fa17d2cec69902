"""The preconditions of a simulation: whatever would stop it is refused before it seems to begin, and nothing is spent.

The functions stand in the order in which they are called: what is quick comes before what takes a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedprivacy._support.settings import without_folder
from fedprivacy._support.signing import server_key
from fedprivacy.flower.simulated.engine import config_here, quiet_flower, trains_together
from fedprivacy.flower.simulated.shards import check_shards, check_tables
from fedprivacy.flower.simulated.trial import machine_for, opened_shard, try_table, try_task
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.database import check_folder
from fedprivacy.runs.participation import participation_of
from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.plans.plan import QuestionPlan, TrainingPlan
from fedprivacy.runs.records.folder import check_usable
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.runs.settings.device import choose_device
from fedprivacy.server.app import build_strategy
from fedprivacy.tasks import TaskError
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.trackers import build_trackers
from fedprivacy.training.machine import Machine


def check_run(plan: TrainingPlan, placement: Placement) -> Machine:
    """Refuse a run that its machine, its files, its task or its budgets would stop.

    Returns:
        This machine, and how it computes the run's gradients, where they are private and computed here.

    Raises:
        ConfigError: says what is wrong; of a task, which method fails, and for which client.
        RunFolderError: `out` holds a run already, or cannot be written.
        LedgerError: the ledger cannot be used.
        SigningKeyError: the key that is named cannot be read or made.
    """
    config = plan.config
    _check_machine(config, placement)
    here = config_here(config, placement)
    with quiet_flower():
        build_strategy(config)
    build_trackers(config.trackers)
    _check_participation(config)
    _check_ledger(config)
    _check_signing_key(config)
    _check_task(plan, here, placement)
    _check_noise(plan, here, placement)
    if not config.privacy or placement.ray_address:
        return Machine.here()
    return machine_for(plan.task, here, choose_device(config.device), stacked=trains_together(config))


def check_asking(plan: QuestionPlan, columns: Collection[str]) -> None:
    """Refuse questions that this machine, its files or the first clients' tables, which need these columns, would stop.

    Raises:
        ConfigError, RunFolderError, LedgerError: as of a run.
    """
    _check_machine(plan.config, HERE)
    check_folder(plan.config.ledger)
    with _as_config_error():
        try_table(plan.task, plan.config, columns)
        check_tables(plan.task, plan.config)


def _check_machine(config: RunConfig, placement: Placement) -> None:
    """Refuse a device that this machine lacks, and a folder that cannot be written."""
    if not placement.ray_address:  # a cluster's machines have devices of their own
        choose_device(config.device)
    if not config.resume:
        check_usable(Path(config.out))


def _check_participation(config: RunConfig) -> None:
    """Refuse a trace or a deadline, as far as it is known to be wrong: without a seed, who is fast is not yet."""
    client_ids = [simulated_client_id(number, config.clients) for number in range(config.clients)]
    known = config if config.seed is not None else replace(config, deadline=None)
    participation_of(known, run_id="").check(client_ids, config.local_steps)


def _check_ledger(config: RunConfig) -> None:
    if config.ledger:
        check_folder(config.ledger)
        Ledger(config.ledger).close()


def _check_signing_key(config: RunConfig) -> None:
    if config.signing_key:
        key = Path(config.signing_key)
        if problem := without_folder("signing-key", key):
            raise ConfigError([problem])
        server_key(key)


def _check_task(plan: TrainingPlan, here: RunConfig, placement: Placement) -> None:
    """Open every client's shard in this process, where it stays open; for a cluster's only the first and the last."""
    clients, device = range(here.clients), None
    if placement.ray_address:
        clients = range(0, len(clients), max(1, len(clients) - 1))
    elif here.privacy:
        device = choose_device(plan.config.device)
    with _as_config_error():
        try_task(plan.task, here, clients)
        check_shards(plan.task, here, clients, device)


def _check_noise(plan: TrainingPlan, here: RunConfig, placement: Placement) -> None:
    """Refuse, before there is a folder, a client's own budget that no noise meets.

    On a cluster shards are opened elsewhere, and it is said later. What is found is remembered for when the client
    enrols.
    """
    config = plan.config
    if not plan.noise_by_rate or config.resume or placement.ray_address:
        return
    parts = enumerate(plan.simulated_clients)
    plan.events({client_id: len(opened_shard(plan.task, here, number)) for number, client_id in parts})


@contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except TaskError as error:
        problem = ConfigError([str(error)])
        for note in getattr(error, "__notes__", []):
            problem.add_note(note)
        raise problem from error
