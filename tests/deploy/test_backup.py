"""`fedprivacy deploy backup`: what was lost with a host is there again, and no record has left it."""

import shutil
import sqlite3
import stat
import sys
import tarfile
from contextlib import closing

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy.backup import EXPORT, write_backup
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.export import verify_export
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.runs.records.witnesses import WITNESS
from tests.deploy.written_hosts import OWN, deployment
from tests.terminal import CliRunner


@pytest.fixture
def hosts(tmp_path):
    """A deployment's folders, of which each is its party's on its host."""
    records = f"{tmp_path}/out/clients/{{client}}/data"
    return deployment(tmp_path, sys.prefix, clients=["hospital-1"], records=records)


def backed_up(folder, out):
    done = CliRunner().invoke(deploy_app, ["backup", str(folder), "--out", str(out)])
    return done.exit_code, done.output.replace("\n", " ")


def lose_and_restore(folder, backup):
    shutil.rmtree(folder)
    folder.mkdir()
    with tarfile.open(backup) as archive:
        archive.extractall(folder, filter="tar")


def steps_in(url):
    ledger = Ledger(url)
    return {name: sum(kept.history.values()) for name, kept in ledger.accounts(ledger.dataset_ids()).items()}


class AfterRound(fp.Callback):
    def __init__(self, number, act):
        self.number, self._act = number, act

    def after_round(self, result):
        if result.round == self.number:
            self._act()


def test_a_server_that_is_lost_goes_on_from_a_backup_of_its_run(hosts, tmp_path):
    server, backup = hosts / "server", tmp_path / "backup.tar"
    (server / ".venv").mkdir()
    (server / ".venv" / "pyvenv.cfg").touch()
    ledger, out = f"sqlite:///{server / 'ledger' / 'ledger.db'}", server / "runs" / "one"
    settings = {"ledger": ledger, "signing_key": str(server / "signing.key"), "noise_multiplier": 2.0}
    back = AfterRound(2, lambda: write_backup(server, backup))
    fp.simulate(f"{OWN}:Sides", clients=3, rounds=4, out=out, callbacks=[back], progress=False, **settings)
    steps = steps_in(ledger)

    lose_and_restore(server, backup)
    assert not (server / ".venv").exists()
    assert stat.S_IMODE((server / "signing.key").stat().st_mode) == stat.S_IMODE(backup.stat().st_mode) == 0o600
    witness = read_witness(out / WITNESS)
    assert verify_ledger(Ledger(ledger), witnesses=[witness]).head.number >= witness.number
    assert verify_export(server / EXPORT, witnesses=[witness]).head.number >= witness.number
    resumed = fp.simulate(resume=out, progress=False)
    assert [record.round for record in resumed.history.rounds] == [1, 2, 3, 4]
    # The round that was underway, after its charge and before its checkpoint, is trained and charged again.
    assert set(steps.values()) == {4} and steps_in(ledger) == dict.fromkeys(steps, 5)


def test_a_client_s_backup_holds_its_key_and_its_guard_and_no_record(hosts, tmp_path):
    client, backup = hosts / "clients" / "hospital-1", tmp_path / "backup.tar"
    (client / "data" / "images").mkdir(parents=True)
    (client / "data" / "Alice").mkdir()
    np.save(client / "data" / "points.npy", np.full((80, 2), 4711.0))
    (client / "data" / "images" / "4711.png").write_bytes(b"patient")
    (client / "guard" / "guard.log.abc.sealed").mkdir()
    (client / "guard" / "guard.log.abc.sealed" / "one.update").write_bytes(b"sealed")
    (client / "guard" / "guard.log").write_bytes(b"log")
    code, told = backed_up(client, backup)
    assert code == 0 and f"Not in it: {client / 'data'}" in told and "secret keys" in told
    with tarfile.open(backup) as archive:
        names = archive.getnames()
    own = {"guard/guard.log", "guard/guard.log.abc.sealed/one.update", "hospital-1.key", "node-config.toml"}
    assert own <= set(names) and ".flwr" in names  # empty, and a service's sandbox cannot make it
    assert names[-1] == "guard/guard.log"
    assert not any(name.startswith("data") for name in names)

    text = (client / "node-config.toml").read_text()
    (client / "node-config.toml").write_text(text.replace('guard/guard.log"', 'data/own.log"'))
    (client / "data" / "own.log").write_bytes(b"log")
    (client / "data" / "own.log.abc.sealed").mkdir()
    (client / "data" / "own.log.abc.sealed" / "one.update").write_bytes(b"sealed")
    write_backup(client, tmp_path / "second.tar")
    with tarfile.open(tmp_path / "second.tar") as archive:
        kept = [name for name in archive.getnames() if name.startswith("data")]
        assert kept == ["data/own.log.abc.sealed/one.update", "data/own.log"]


@pytest.mark.parametrize("wrong", ["exists", "lies in"])
def test_a_backup_replaces_nothing_and_is_not_kept_beside_what_it_is_for(hosts, tmp_path, wrong):
    (tmp_path / "exists.tar").touch()
    code, told = backed_up(
        hosts / "server", tmp_path / "exists.tar" if wrong == "exists" else hosts / "server" / "b.tar"
    )
    assert code == 2 and wrong in told and "name a new file" in told


def test_a_ledger_that_does_not_verify_is_told_and_not_backed_up(hosts, tmp_path):
    server = hosts / "server"
    ledger = f"sqlite:///{server / 'ledger' / 'ledger.db'}"
    fp.simulate(f"{OWN}:Sides", clients=2, rounds=2, ledger=ledger, out=tmp_path / "run", progress=False)
    with closing(sqlite3.connect(server / "ledger" / "ledger.db")) as database:
        database.executescript("DROP TRIGGER journal_no_update; UPDATE journal SET entry = replace(entry, 3.0, 9.0);")
    code, told = backed_up(server, tmp_path / "backup.tar")
    assert code == 1 and "entry" in told, told
    assert not (tmp_path / "backup.tar").exists()
