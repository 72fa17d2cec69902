"""The pages on keys and incidents, typed on real processes: no account begins anew, and no old key is let in."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from fedprivacy._support.signing import server_key, server_public_key
from fedprivacy._support.software import software
from fedprivacy.deploy import server_inspection
from fedprivacy.deploy.federation import free_ports
from fedprivacy.deploy.keys import write_client_key
from fedprivacy.deploy.processes import Supervisor
from fedprivacy.flower.unpublished import ADMITTED
from fedprivacy.guard import Guard
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.certificate import certify
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.records.witnesses import WITNESS
from tests.commands.running import fedprivacy
from tests.conftest import lacking
from tests.deploy.drill import BUDGET, RUN, Drill
from tests.deploy.written_hosts import HOSPITALS, NGINX, warm

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = "".join((HOW_TO / name).read_text() for name in ("keys.md", "incidents.md"))
HOSPITAL, OTHER = HOSPITALS
SERVICES = ("client", "client-superexec")
REGISTER = "flwr supernode register clients/hospital-0.pub deployment --name hospital-0"
REBIND = "fedprivacy ledger rebind hospital-0 clients/hospital-0.pub --ledger ledger/ledger.db"

IMPATIENT = (
    "from fedprivacy.deploy import submission as run; run.START = 3.0; from fedprivacy.commands.app import app; app()"
)
"""The program, which waits less until it names the SuperExec: each look at a run is a process."""

pytestmark = pytest.mark.exhaustive


def typed(line, folder, environment, values):
    """Type a line of a page in a folder, with its made-up names replaced by true ones; return what it said."""
    assert re.search(rf"^{re.escape(line)}(\s+#.*)?$", PAGES, re.MULTILINE), f"no page says: {line}"
    usual = {"TASK/hospital-0": f"sides/{HOSPITAL}", "hospital-0": HOSPITAL}
    for name, value in {**usual, **values}.items():
        line = line.replace(name, str(value))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with mock.patch.dict(os.environ, environment | {"PATH": path, "COLUMNS": "300"}):
        command, _, file = line.partition(" > ")
        if command.startswith("fedprivacy "):
            done = fedprivacy(*shlex.split(command)[1:], cwd=folder, columns=300)
            if file:
                (folder / file).write_text(done.stdout)
            return done.output
        done = subprocess.run(["bash", "-c", line], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Operated(Drill):
    """A deployment at whose hosts somebody types what the pages say."""

    program = sys.executable, "-c", IMPATIENT

    def at_server(self, line, **values):
        """The output of a command on the server's host."""
        return typed(line, self.server, self.hosts.environment, values)

    def at_hospital(self, line, **values):
        """The output of a command on the first hospital's host."""
        return typed(line, self.client(HOSPITAL), {}, values)

    def refused(self, line, **values):
        """The error of a command on the server's host that must not succeed."""
        with pytest.raises(AssertionError) as failed:
            self.at_server(line, **values)
        return " ".join(str(failed.value).split())

    def stop(self):
        """Both services of the first hospital, as `systemctl stop` ends them."""
        for service in reversed(SERVICES):
            self.hosts.stop(self.client(HOSPITAL), service)

    def start(self):
        """Both again; wait until the server has let the hospital in, for a run does not wait for whom it can spare."""
        node, _ = (self.hosts.start(self.client(HOSPITAL), service) for service in SERVICES)
        self._supervisor.wait_until_ready(node, lambda: ADMITTED in node.output(), timeout=300)

    def ran(self, clients=2):
        """A run of one round that waits for so many clients: who took part, and what was said."""
        out = self.describe_run(rounds=1, clients=clients)
        with mock.patch.dict(os.environ, self.hosts.environment):
            told = fedprivacy(*RUN.split(), cwd=self.server, columns=300).output
        return read_history(out).last.participants, told

    def spent(self):
        """Steps on the ledger by dataset, after it was verified."""
        ledger = Ledger(f"sqlite:///{self.ledger}")
        verify_ledger(ledger)
        return {name: sum(one.history.values()) for name, one in ledger.accounts(ledger.dataset_ids()).items()}


@pytest.fixture(scope="module")
def operated(tmp_path_factory):
    if NGINX is None:
        lacking("no nginx; install it, for example apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("incidents")
    with Supervisor(folder / "logs") as supervisor:
        yield Operated(supervisor, folder, warm)


@pytest.fixture(scope="module")
def stalled(operated):
    """The server's check while a run waits for a SuperExec that stands still; then the run has two rounds."""
    operated.hosts.signal(operated.server, "superexec", signal.SIGSTOP)
    try:
        out = operated.start_run(rounds=2)
        with pytest.MonkeyPatch.context() as monkeypatch:
            for name, value in operated.hosts.environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(server_inspection, "LONGEST_WAIT", 2.0)
            deadline = time.monotonic() + 300
            while "still waits for the SuperExec" not in operated.run.output():
                assert time.monotonic() < deadline, operated.run.tail()
                time.sleep(0.5)
            party = server_inspection.Party.read(operated.server)
            found = {one.check: one for one in server_inspection.inspect_server(party, operated.server)}
    finally:
        operated.hosts.signal(operated.server, "superexec", signal.SIGCONT)
    operated.completed()
    assert read_history(out).last.participants == HOSPITALS
    return found


@pytest.fixture(scope="module")
def rebound(operated, stalled):
    """A copy of the first hospital's host, whose key is replaced since as the page says, and the steps before that."""
    server, client, thief = operated.server, operated.client(HOSPITAL), operated.server.parents[1] / "thief"
    before = operated.spent()
    shutil.copytree(client, thief)
    node = node_of(operated, HOSPITAL)
    assert node in operated.at_server("flwr supernode list deployment").replace("│", "")
    operated.at_server("flwr supernode unregister NODE_ID deployment", NODE_ID=node)
    operated.stop()
    operated.at_hospital("fedprivacy deploy client-key hospital-0 --out new")
    operated.at_hospital("mv -f new/hospital-0.key new/hospital-0.pub .")
    assert (client / f"{HOSPITAL}.key").read_bytes() != (thief / f"{HOSPITAL}.key").read_bytes()
    shutil.copy(client / f"{HOSPITAL}.pub", server)
    operated.at_server("mv -f hospital-0.pub clients/hospital-0.pub")
    operated.at_server(REGISTER)
    operated.start()
    participants, told = operated.ran()
    assert participants == (OTHER,)
    assert f"Client {HOSPITAL} is left out: client {HOSPITAL} comes with another key" in told
    operated.at_server(REBIND)
    return thief, before


def node_of(operated, name):
    """The id of a hospital's node, as its own log says it."""
    log = (operated.server.parents[1] / "logs" / f"{name}-client.log").read_text()
    return re.findall(r"SuperNode ID: (\d+)", log)[-1]


def test_a_superexec_that_answers_and_starts_nothing_is_named(stalled):
    assert stalled["superexec"].verdict == "failed" and "has waited" in stalled["superexec"].words
    assert stalled["books"].verdict == "ok"


@pytest.mark.usefixtures("stalled")
def test_a_hospital_s_own_receipts_say_which_program_it_ran(operated):
    issuer = server_public_key(server_key(operated.server / "signing.key"))
    for certificate in certify(Ledger(f"sqlite:///{operated.ledger}"), (), issuer):
        assert [(ran["software"], ran["digest"]) for ran in certificate.client_ran] == [software()]
        assert certificate.client_ran[0]["charges"] == certificate.receipts >= 2


@pytest.mark.usefixtures("stalled")
def test_a_lost_guard_begins_anew_at_what_the_ledger_holds_and_new_patients_share_the_account(operated):
    before = operated.spent()
    operated.stop()
    operated.at_hospital("mv guard guard-lost")
    operated.at_hospital("mkdir -m 700 guard")
    points = operated.server.parents[1] / "records" / "points.npy"
    np.save(points, np.concatenate([np.load(points), np.random.default_rng(1).normal(size=(8, 2))]))
    show = "fedprivacy ledger show --dataset TASK/hospital-0 --ledger ledger/ledger.db"
    assert f"sides/{HOSPITAL}" in operated.at_server(show)
    operated.start()
    participants, told = operated.ran()
    assert participants == HOSPITALS, told
    own = Guard(operated.client(HOSPITAL) / "guard" / "guard.log", BUDGET).history()
    after = operated.spent()
    assert after.keys() == before.keys() and all(after[dataset] > before[dataset] for dataset in before)
    assert sum(own.values()) == after[f"sides/{HOSPITAL}"]
    operated.at_hospital("fedprivacy guard show guard/guard.log")
    operated.at_hospital("fedprivacy guard export guard/guard.log > hospital-0.jsonl")
    shutil.copy(operated.client(HOSPITAL) / f"{HOSPITAL}.jsonl", operated.server)
    compare = "fedprivacy ledger reconcile TASK/hospital-0 hospital-0.jsonl --ledger ledger/ledger.db"
    assert f"0 steps were charged to sides/{HOSPITAL}" in operated.at_server(compare)
    assert operated.lost() == 0


@pytest.mark.usefixtures("stalled")
def test_a_killed_client_and_a_killed_server_lose_no_charge_and_the_run_goes_on(operated):
    before = {name: operated.steps(name) for name in HOSPITALS}
    out = operated.start_run(round_timeout=20.0)
    operated.wait_for_round(out, 1)
    for service in SERVICES:
        operated.hosts.kill(operated.client(HOSPITAL), service)
    operated.wait_for_round(out, 2)
    for service in ("superexec", "superlink"):
        operated.hosts.kill(operated.server, service)
    os.kill(operated.run.pid, signal.SIGKILL)  # which would look for the server for a minute
    assert operated.ended() != 0
    verify_ledger(Ledger(f"sqlite:///{operated.ledger}"), witnesses=[read_witness(out / WITNESS)])
    assert operated.lost() == 0
    killed = {name: operated.steps(name) for name in HOSPITALS}
    operated.hosts.start_server()
    for service in SERVICES:
        operated.hosts.start(operated.client(HOSPITAL), service)
    with operated.hosts.kept_running():  # a SuperNode that was killed is refused for a while
        operated.start_run(resume=out, round_timeout=20.0)
        operated.completed()
    rounds = read_history(out).rounds
    assert [record.round for record in rounds] == [1, 2, 3]
    assert [record.participants for record in rounds] == [HOSPITALS, (OTHER,), HOSPITALS]
    assert all(before[name] < killed[name] < operated.steps(name) for name in HOSPITALS)
    assert operated.lost() == 0


def test_a_stolen_key_that_was_replaced_is_let_in_nowhere(operated, rebound):
    """The thief knocks, and a stranger; the operator is talked into another name, and into taking the key back."""
    server, client, (thief, _) = operated.server, operated.client(HOSPITAL), rebound
    before = operated.spent()
    for service in SERVICES:
        unit = thief / "systemd" / f"fedprivacy-{service}.service"
        unit.write_text(re.sub(r"(--port |127\.0\.0\.1:)\d+", rf"\g<1>{free_ports(1)[0]}", unit.read_text()))
        unit.write_text(unit.read_text().replace(str(client), str(thief)))
    node = thief / "systemd" / "fedprivacy-client.service"
    for key in (f"{HOSPITAL}.key", write_client_key(thief, "stranger").private_key.name):  # that nobody registered
        node.write_text(node.read_text().replace(f"{HOSPITAL}.key", key))
        knocking = operated.hosts.start(thief, "client")
        operated.ended(knocking)
        assert ADMITTED not in knocking.output() and "Failed to activate SuperNode" in knocking.output()
    for name, problem in ((OTHER, f"is or was {HOSPITAL}'s"), (HOSPITAL, "replaced that key before")):
        right = (server / "clients" / f"{name}.pub").read_bytes()
        shutil.copy(thief / f"{HOSPITAL}.pub", server / "clients" / f"{name}.pub")
        assert problem in operated.refused(REBIND, **{"hospital-0": name})
        assert "already" in operated.refused(REGISTER, **{"hospital-0": name})
        (server / "clients" / f"{name}.pub").write_bytes(right)
    assert operated.spent() == before


def test_new_keys_of_hospital_and_server_go_on_with_the_account_and_the_old_heads_stay_proven(operated, rebound):
    """The hospital whose key was replaced names the server's new key; the other one has not followed yet."""
    before_both, before = rebound[1], operated.spent()
    sign = "fedprivacy ledger sign signing.key --out last-of-old-key.json --ledger ledger/ledger.db"
    operated.at_server(sign)
    (old,) = re.findall(r'^server-key = "(.*)"', (operated.server / "party.toml").read_text(), re.MULTILINE)
    operated.at_server("mv signing.key signing.key.old")
    made = operated.at_server("fedprivacy deploy signing-key signing.key")
    (new,) = re.findall(r'server-key = "([0-9a-f]{64})"', made)
    assert new != old
    operated.at_server("sed -i 's/^server-key = .*/server-key = \"NEW\"/' party.toml", NEW=new)
    operated.at_hospital("sed -i 's/^server-key = .*/server-key = \"NEW\"/' party.toml node-config.toml", NEW=new)
    operated.stop()
    operated.start()
    participants, told = operated.ran(clients=1)
    assert participants == (HOSPITAL,), told  # the other one obeys the old key alone
    witnessed = "--witness last-of-old-key.json --ledger ledger/ledger.db"
    verify = f"fedprivacy ledger verify --signer OLD --signer NEW {witnessed}"
    operated.at_server(verify, OLD=old, NEW=new)
    assert "none of those named" in operated.refused(verify, OLD=new, NEW=new)
    after = operated.spent()
    assert after[f"sides/{HOSPITAL}"] > before[f"sides/{HOSPITAL}"] > 0
    assert after[f"sides/{OTHER}"] == before[f"sides/{OTHER}"] > before_both[f"sides/{OTHER}"]
    assert after.keys() == before_both.keys()  # each account went on, and no other one began
    assert operated.lost() == 0
