"""A run whose database or a client's disk fails releases nothing that no book holds."""

import errno
import logging
import os

import pytest
from flwr.serverapp.strategy import FedAvg

from fedprivacy._support import durable
from fedprivacy.commands.ledger_tables import charges
from fedprivacy.flower import PrivateStrategy
from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import LogWriteError
from fedprivacy.ledger import ChargeState, Ledger
from fedprivacy.ledger.verify import verify_ledger
from tests.flower.blobs import Blobs, plan_of
from tests.flower.deployment import DeployedGrid
from tests.flower.runs import SAMPLING
from tests.ledger.acts import at_first_trouble


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def deployed(tmp_path, ledger):
    settings = {"clients": 3, "rounds": 3, "noise_multiplier": 2.0, "epsilon": 20.0, "seed": None}
    return plan_of(Blobs(), **settings, ledger=ledger, signing_key=str(tmp_path / "signing.key"))


def strategy(plan, observer, **kwargs):
    return PrivateStrategy(FedAvg(**SAMPLING), plan, observers=[observer], **kwargs)


@pytest.mark.exhaustive
def test_a_database_that_crashes_between_two_rounds_loses_nothing_and_the_run_goes_on(postgres, postgres_url, tmp_path):
    plan, records = deployed(tmp_path, postgres_url), []
    grid = DeployedGrid(plan, tmp_path)

    def crash(record):
        records.append(record)
        if record.round == 1:
            postgres.kill()

    with at_first_trouble(postgres.start):
        strategy(plan, crash).start(grid)
    assert [len(record.participants) for record in records[1:]] == [3, 3, 3]
    assert all(grid.guard(plan, name).history() == {plan.event(): 6} for name in grid.names.values())
    replay = verify_ledger(Ledger(postgres_url)).replay
    assert [charge.state for charge in replay.charges.values()] == [ChargeState.COMMITTED] * 9


@pytest.mark.exhaustive
def test_a_client_whose_disk_is_full_refuses_before_it_reads_a_record_and_gets_its_charge_back(
    ledger_url, tmp_path, monkeypatch, caplog
):
    plan, records = deployed(tmp_path, ledger_url), []
    grid = DeployedGrid(plan, tmp_path)
    strategy(plan, records.append).start(grid, num_rounds=1)
    with (tmp_path / "hospital-1" / GUARD).open("rb") as full:

        def write_at(fd, data, at):
            if os.path.sameopenfile(fd, full.fileno()):
                raise OSError(errno.ENOSPC, "No space left on device")
            durable.write_at(fd, data, at)

        monkeypatch.setattr("fedprivacy.guard.log.write_at", write_at)
        with caplog.at_level(logging.ERROR, "fedprivacy.client"):
            strategy(plan, records.append).start(grid)
    assert records[-1].failures == {"hospital-1": "guard-unusable"}
    assert {charge["state"] for charge in charges(Ledger(ledger_url), "blobs/hospital-1")[1:]} == {ChargeState.VOID}
    monkeypatch.undo()
    assert grid.guard(plan, "hospital-1").history() == {plan.event(): 2}
    assert any(isinstance(record.exc_info[1], LogWriteError) for record in caplog.records if record.exc_info)
