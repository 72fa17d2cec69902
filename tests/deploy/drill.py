"""A drill: what a platform team will meet in the years to come, done to a deployment of real processes.

`make drill` runs it and ends with a table: the fault, how many charges were lost, seconds until the work was done, and
what was said. Every fault is followed by a run that must complete, and by a look into all three books.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedprivacy.deploy.federation import program, write_toml
from fedprivacy.deploy.keys import write_keys
from fedprivacy.deploy.processes import Supervisor
from fedprivacy.guard import Guard
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.records.folder import read_history, read_lines
from fedprivacy.runs.records.witnesses import WITNESS
from fedprivacy.values.budget import PrivacyBudget
from tests.commands.stopping import fill
from tests.conftest import lacking
from tests.deploy.written_hosts import HOSPITALS, NGINX, WrittenHosts, command_of, deployment
from tests.ledger.acts import tamper
from tests.postgres import PostgresCluster, find_programs

BUDGET = PrivacyBudget(100.0, 1e-3)
PATIENCE = 900.0
DAY = timedelta(days=1)
RUN = "deploy run mine-app --run-config drill.toml"


class Drill:
    """Two hospitals, a server and its proxy, as `deploy init` wrote them, all on this host."""

    program = sys.executable, "-m", "fedprivacy"

    def __init__(self, supervisor, folder, command=command_of):
        out = deployment(folder, sys.prefix, epsilon=BUDGET.epsilon, delta=BUDGET.delta)
        self._supervisor, self._runs = supervisor, 0
        self.server, self.ledger = out / "server", out / "server" / "ledger" / "ledger.db"
        self.told = []
        self.hosts = WrittenHosts(supervisor, out, command)
        self.hosts.set_up()

    def client(self, name):
        return self.server.parent / "clients" / name

    def start_run(self, **settings):
        """Start a run, or go on with one; return its folder."""
        out = self.describe_run(**settings)
        command = [*self.program, *RUN.split()]
        self.run = self._supervisor.start("run", command, environment=self.hosts.environment, directory=self.server)
        return out

    def describe_run(self, rounds=3, clients=2, resume=None, ledger=None, round_timeout=90.0):
        """Write a run's settings; return its folder."""
        self._runs += 1
        out = self.server / "runs" / f"run-{self._runs}"
        common = {"task": f"{self.server}/mine.py:Sides", "clients": clients, "rounds": rounds}
        common |= {"node-timeout": 600.0, "round-timeout": round_timeout}
        books = {"ledger": ledger or f"sqlite:///{self.ledger}", "signing-key": f"{self.server}/signing.key"}
        privacy = {"epsilon": BUDGET.epsilon, "delta": BUDGET.delta, "noise-multiplier": 3.0}
        given = {"resume": str(resume)} if resume else {"out": str(out)}
        write_toml(self.server / "drill.toml", {"": {**common, **books, **privacy, **given}})
        return out

    def wait_for_round(self, out, number):
        deadline = time.monotonic() + PATIENCE
        while len(read_lines(out)) <= number:
            assert time.monotonic() < deadline and self.run.running, self.run.tail(40)
            time.sleep(0.1)

    def ended(self, process=None):
        """The exit code of a run, or of another process, at its end."""
        return self._supervisor.wait(process or self.run, PATIENCE)

    def completed(self):
        assert self.ended() == 0, self.run.tail(60)

    def whole_run(self):
        out = self.start_run(rounds=2)
        self.completed()
        return read_history(out)

    def steps(self, name):
        """Steps that a hospital's guard holds."""
        return sum(Guard(self.client(name) / "guard" / "guard.log", BUDGET).history().values())

    def forget_witnesses(self):
        """Rename the witnesses, as the page says for a ledger that is lost for good."""
        for witness in self.server.glob(f"runs/*/{WITNESS}"):
            witness.rename(witness.with_suffix(".lost"))

    def lost(self, url=None):
        """Steps on a hospital's own book that the ledger does not hold, of both hospitals; the journal is whole."""
        ledger = Ledger(url or f"sqlite:///{self.ledger}")
        verify_ledger(ledger)
        accounts = ledger.accounts([f"sides/{name}" for name in HOSPITALS])
        own = {name: Guard(self.client(name) / "guard" / "guard.log", BUDGET).history() for name in HOSPITALS}
        assert all(sum(history.values()) > 0 for history in own.values())
        return sum(
            max(0, sum(own[name].values()) - sum(accounts[f"sides/{name}"].history.values())) for name in HOSPITALS
        )


@pytest.fixture(scope="module")
def drill(tmp_path_factory, request):
    if NGINX is None:
        lacking("no nginx; install it, for example apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("drill")
    terminal, captured = map(request.config.pluginmanager.get_plugin, ("terminalreporter", "capturemanager"))
    with Supervisor(folder / "logs") as supervisor:
        drill = Drill(supervisor, folder)
        with drill.hosts.kept_running():
            drill.whole_run()
            yield drill
    if terminal:  # a worker of pytest-xdist has none
        with captured.global_and_fixture_disabled():
            terminal.write_line("")
            for fault, lost, seconds, words in drill.told:
                terminal.write_line(f"{fault:<36} lost: {lost}  {seconds:5.0f} s  {words}")


@pytest.fixture
def tells(drill, request):
    """Let a test tell what was said; its fault, time and loss are told besides."""
    started, words = time.monotonic(), []
    yield words.append
    lost = drill.lost()
    drill.told.append((request.node.name.removeprefix("test_"), lost, time.monotonic() - started, " ".join(words)))
    assert lost == 0


def test_killed_superlink(drill, tells):
    out = drill.start_run(rounds=4)
    drill.wait_for_round(out, 1)
    drill.hosts.kill(drill.server, "superlink")
    time.sleep(10)  # as its unit does
    drill.hosts.start_server()
    drill.completed()
    assert [record.round for record in read_history(out).rounds] == [1, 2, 3, 4]
    tells("the run waited for it and went on")


def test_killed_proxy(drill, tells):
    out = drill.start_run(rounds=3)
    drill.wait_for_round(out, 1)
    drill.hosts.kill(drill.server, "proxy")
    time.sleep(5)
    tells(check(drill, "hospital-1", "server"))
    drill.hosts.start(drill.server, "proxy")
    drill.completed()
    assert read_history(out).last.participants == HOSPITALS


@pytest.mark.parametrize("wrong", ["another authority's", "expired"])
def test_wrong_certificate(drill, tells, wrong, tmp_path):
    own, keys = drill.server / "server.crt", drill.server.parent / "ca" / "ca.key"
    right = own.read_bytes()
    if wrong == "expired":
        own.write_bytes(expired(right, keys))
    else:
        own.write_bytes(expired(right, write_keys(tmp_path, ["localhost"]).ca_key, ends=datetime.now(UTC) + DAY))
    restart_proxy(drill)
    tells(check(drill, "hospital-1", "server"))
    own.write_bytes(right)
    restart_proxy(drill)
    assert drill.whole_run().last.participants == HOSPITALS  # a SuperNode that meets such a certificate ends


def test_older_ledger_put_back(drill, tells, tmp_path):
    """No run starts on it beside what was signed since; where the newer one is lost, the page's way goes on."""
    copy(drill.ledger, tmp_path / "old.db")
    drill.whole_run()
    copy(tmp_path / "old.db", drill.ledger)
    assert drill.lost() > 0
    assert "does not hold entry" in check(drill, "server", "ledger")
    drill.start_run(rounds=1)
    assert drill.ended() == 1
    tells(next(line for line in drill.run.output().splitlines() if "does not hold entry" in line)[:300])
    drill.forget_witnesses()
    assert drill.whole_run().last.participants == HOSPITALS
    tells("The hospitals' guards raised it.")


def test_tampered_row(drill, tells, tmp_path):
    copy(drill.ledger, tmp_path / "right.db")
    tamper(f"sqlite:///{drill.ledger}", "UPDATE charges SET steps = 0")
    verify = [program("fedprivacy"), "ledger", "verify", "--ledger", f"sqlite:///{drill.ledger}"]
    done = subprocess.run(verify, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    tells(" ".join(done.stderr.split()))
    drill.start_run(rounds=1)
    assert drill.ended() == 1  # no run begins on it
    copy(tmp_path / "right.db", drill.ledger)
    assert drill.whole_run().last.participants == HOSPITALS


def test_full_disk_of_a_hospital(drill, tells):
    with small_disk(drill.client("hospital-1") / "guard") as guard:
        fill(guard, 0)
        out = drill.start_run(rounds=2)
        drill.completed()
        assert [record.participants for record in read_history(out).rounds] == [("hospital-2",)] * 2
        tells(failure(read_history(out), "hospital-1") + ";")
        tells(check(drill, "hospital-1", "room"))
        (guard / "filler").unlink()
        assert drill.whole_run().last.participants == HOSPITALS


def test_full_disk_of_the_server(drill, tells):
    with small_disk(drill.ledger.parent) as folder:
        fill(folder, 0)
        out = drill.start_run(rounds=2)
        assert drill.ended() == 1
        tells(next(line for line in drill.run.output().splitlines() if line.startswith("error:"))[:300])
        (folder / "filler").unlink()
        assert drill.whole_run().last.participants == HOSPITALS
    assert len(read_lines(out)) <= 1  # nobody was asked to train


def test_postgresql_off(drill, tells):
    """For a moment the run waits; for longer than its patience it stops with the model saved, and goes on later."""
    if (programs := find_programs()) is None:
        lacking("no PostgreSQL server; install it, for example apt-get install postgresql")
    with PostgresCluster(programs) as cluster:
        url = cluster.new_database()
        out = drill.start_run(rounds=5, ledger=url)
        drill.wait_for_round(out, 1)
        cluster.kill()
        time.sleep(10)
        cluster.start()
        drill.wait_for_round(out, 3)
        cluster.stop()
        assert drill.ended() == 1
        tells(next(line for line in drill.run.output().splitlines() if "LedgerError" in line)[:300])
        cluster.start()
        drill.start_run(rounds=5, ledger=url, resume=out)
        drill.completed()
        assert [record.round for record in read_history(out).rounds] == [1, 2, 3, 4, 5]
        assert drill.lost(url) == 0
    assert drill.whole_run().last.participants == HOSPITALS  # on the ledger that missed all this: the guards raise it


@contextmanager
def small_disk(folder):
    """Put a file system of 16 MB in a folder's place, with its contents, for a while."""
    beside = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, beside)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", folder], check=False).returncode:
        lacking("only root mounts a file system")
    try:
        shutil.copytree(beside, folder, dirs_exist_ok=True)
        yield folder
        shutil.rmtree(beside)
        shutil.copytree(folder, beside)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    shutil.rmtree(folder)  # with what SQLite left beside a database: it would be taken for the newer one's
    beside.rename(folder)


def copy(database, to):
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def failure(history, name):
    """The last reason for which a client did not take part."""
    return next(record.failures[name] for record in reversed(history.rounds) if name in record.failures)


def restart_proxy(drill):
    drill.hosts.kill(drill.server, "proxy")
    drill.hosts.start(drill.server, "proxy")
    time.sleep(2)


def expired(certificate, authority_key, ends=None):
    """The same certificate with another end, yesterday unless it is given, signed with this key."""
    given, key = x509.load_pem_x509_certificate(certificate), load_pem_private_key(authority_key.read_bytes(), None)
    ends = ends or datetime.now(UTC) - DAY
    builder = x509.CertificateBuilder(given.issuer, given.subject, given.public_key(), given.serial_number)
    builder = builder.not_valid_before(ends - 30 * DAY).not_valid_after(ends)
    for extension in given.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def check(drill, name, line):
    """The failed line of a host's `deploy check`."""
    folder = drill.server if name == "server" else drill.client(name)
    command = [program("fedprivacy"), "deploy", "check", folder]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "COLUMNS": "300"})
    return next(found for found in done.stdout.splitlines() if found.startswith(f"failed   {line}")).strip()
