"""`fedprivacy deploy check`: what is wrong with a host is found before a run finds it, and no record shows."""

import json
import os
import re
import shutil
import socket
import ssl
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from itertools import product
from platform import python_version
from types import SimpleNamespace

import numpy as np
import pytest

from fedprivacy._support.signing import server_key
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy import client_inspection, inspection, server_inspection
from fedprivacy.deploy.inspection import CheckResult, Finding, authorities, check_validity, findings
from fedprivacy.deploy.keys import write_keys
from fedprivacy.flower.client.local import own_shard
from fedprivacy.guard import Guard
from fedprivacy.ledger import Allowance, Ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.deploy.written_hosts import deployment
from tests.runs.witnessed import Host
from tests.terminal import CliRunner

NOBODY_ANSWERS = {"server": "failed"}
ANOTHER_FLOWER = "1.41.0" if version("flwr") != "1.41.0" else "1.42.0"


@pytest.fixture
def hosts(tmp_path):
    """A deployment on this machine, of which no process runs."""
    return deployment(tmp_path, sys.prefix, clients=["hospital-1"])


@pytest.fixture
def client(hosts):
    return hosts / "clients" / "hospital-1"


@pytest.fixture
def server(hosts, monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    return hosts / "server"


def check(folder):
    own_shard.cache_clear()  # a command reads the records anew
    return CliRunner().invoke(deploy_app, ["check", str(folder), "--json"])


def shown_to_owner(folder):
    own_shard.cache_clear()
    done = CliRunner().invoke(deploy_app, ["check", str(folder)], env={"COLUMNS": "400"})
    return " ".join(done.output.split())


def objections(folder):
    """How the checks ended that did not end well, by their names; and their words."""
    done = check(folder)
    told = json.loads(done.stdout)
    assert done.exit_code == any(line["verdict"] == "failed" for line in told["checks"]) == (not told["ok"])
    wrong = [line for line in told["checks"] if line["verdict"] != "ok"]
    return {line["check"]: line["verdict"] for line in wrong}, " ".join(
        line["words"] + line["remedy"] for line in wrong
    )


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_nothing_of_the_records_is_said_or_kept(client, tmp_path, monkeypatch):
    for name in ("attainable_bytes", "free_bytes"):  # other programs come and go meanwhile
        monkeypatch.setattr(inspection, name, lambda *_: 10**12)
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    one = check(client).stdout
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before  # no guard either
    np.save(tmp_path / "records" / "points.npy", np.random.default_rng(1).normal(size=(81, 2)))
    assert check(client).stdout == one


def test_what_the_task_says_of_a_record_is_not_shown(client):
    wrong = "print('Alice'); raise ValueError(f'{points[0]} is Alice, of {len(points)}')"
    edit(client / "mine.py", "        inputs = torch", f"        {wrong}\n        inputs = torch")
    edit(client / "node-config.toml", "@sha256:", '"  # ')
    done = check(client)
    assert "Alice" not in done.output and "ValueError, mine.py line" in done.stdout
    verdicts = {line["check"]: line["verdict"] for line in json.loads(done.stdout)["checks"]}
    assert verdicts["records"] == "failed"


def reads_a_table(client, ages):
    """Let the task read a table with these ages; its own numbers stay as they were."""
    (client.parents[2] / "records" / "people.csv").write_text("age,ill\n" + "".join(f'"{age}",1\n' for age in ages))
    read = '__import__("fedprivacy").load_table(source.folder / "people.csv", target="ill")'
    edit(client / "mine.py", "        part = np", f"        _ = source.folder and {read}\n        part = np")
    edit(client / "node-config.toml", "@sha256:", '"  # ')


@pytest.mark.parametrize(
    ("ages", "verdict", "line"),
    [
        (range(40, 60), "ok", "people.csv: 20 rows, 20 can be read"),
        ([40] * 19 + ["47,3"], "warning", "age: 1 cell, a number with a decimal comma, like '99,9' → decimal=\",\""),
        (["47,3"] * 20, "failed", "no row can be read: stop this client and mend it"),
    ],
)
def test_the_owner_alone_is_told_what_cannot_be_read(client, ages, verdict, line):
    reads_a_table(client, ages)
    done = check(client)
    assert "cells" not in {finding["check"] for finding in json.loads(done.stdout)["checks"]}
    assert "47,3" not in done.output
    shown = shown_to_owner(client)
    assert f"{verdict} cells" in shown and line in shown and "do not send it" in shown and "47,3" not in shown


def test_the_owner_is_told_of_records_that_no_table_holds(client):
    points = client.parents[2] / "records" / "points.npy"
    np.save(points, np.full((80, 2), np.nan))
    assert not re.search(r"\b80 records|record can be read", check(client).output)  # a key may hold 80
    shown = shown_to_owner(client)
    assert "failed cells no record can be read" in shown and ": 80 records, 0 can be read" in shown


@pytest.mark.parametrize(("wrong", "verdict"), [(40, "warning"), (41, "failed")])
def test_the_owner_alone_is_told_of_records_without_a_gradient(client, wrong, verdict):
    edit(client / "mine.py", "(inputs.sum(1) > 0).long()", f"torch.where(torch.arange(len(inputs)) < {wrong}, 9, 1)")
    edit(client / "node-config.toml", "@sha256:", '"  # ')
    done = check(client)
    assert "cells" not in {line["check"] for line in json.loads(done.stdout)["checks"]}
    assert "of 80" not in done.output
    shown = shown_to_owner(client)
    assert f"{verdict} cells" in shown and f"{wrong} of 80 records that were tried have no gradient" in shown
    assert ("more than half of the records count for nothing" in shown) is (verdict == "failed")


def changed(file, old, new):
    """The faults of a host, one of whose files says something else."""
    return lambda host: edit(host / file, old, new)


def task_changed(client):
    (client / "mine.py").write_text("# another's\n" + (client / "mine.py").read_text())


def read_by_pandas(client):
    (client.parents[2] / "records" / "points.csv").write_text("x,y\n" + "".join(f"{n},{-n}\n" for n in range(9)))
    by_pandas = '__import__("pandas").read_csv(source.folder / "points.csv").to_numpy()'
    edit(client / "mine.py", 'np.load(source.folder / "points.npy")', by_pandas)
    edit(client / "node-config.toml", "@sha256:", '"  # ')


def guard_gone(client):
    (client / "guard" / "guard.log.sealed").mkdir()
    (client / "guard" / "guard.log.sealed" / f"{'0' * 64}.update").touch()


def guard_beyond_the_ledger(client):
    guard = Guard(client / "guard" / "guard.log", PrivacyBudget(3.0, 1e-3))
    event = PoissonSampledGaussian(0.1, 2.0, NeighbouringRelation.ZERO_OUT)
    guard.charge(Attempt("spring", 1), event, 6, elsewhere={event: 6})
    verdicts, words = objections(client)
    assert verdicts == NOBODY_ANSWERS, words
    guard.charge(Attempt("autumn", 1), event, 1, elsewhere={event: 1})  # that ledger was put back from an older copy


def two_guards(client):
    shutil.copy(client / "party.toml", client.parents[2] / "records" / "guard.log")


PARTY, NODE, RUN = "party.toml", "node-config.toml", "run.toml"
OF_A_CLIENT = {
    "a key for all": (lambda client: (client / "hospital-1.key").chmod(0o644), {"key": "failed"}, "chmod 600"),
    "another task": (
        task_changed,
        dict.fromkeys(("task", "records", "room", "memory"), "failed"),
        "look who changed it",
    ),
    "no records": (
        lambda client: shutil.rmtree(client.parents[2] / "records"),
        {"records": "failed"},
        "put the records there",
    ),
    "a reader": (read_by_pandas, {"records": "failed"}, "one record decides what the task reads of others"),
    "no guard": (guard_gone, {"guard": "failed"}, "it is gone"),
    "a guard beyond the ledger": (
        guard_beyond_the_ledger,
        {"guard": "warning"},
        "held 6 steps more than the server's ledger when it was charged last, for run autumn",
    ),
    "two guards": (two_guards, {"guard": "failed"}, "each would allow the whole budget"),
    "another server": (changed(PARTY, 'server-key = "', 'server-key = "0'), {"node-config": "failed"}, "by telephone"),
    "a typo": (changed(NODE, "\nepsilon =", "\nepsilom = 1.0\nepsilon ="), {"node-config": "failed"}, "epsilom"),
    "no limit": (
        changed(NODE, "epsilon = 3.0", "epsilon = inf"),
        {"node-config": "failed"},
        "gives epsilon as inf; give a finite number, such as 3.0",
    ),
    "a large budget": (changed(NODE, "epsilon = 3.0", "epsilon = 30.0"), {"budget": "warning"}, "promises little"),
    "another version": (
        changed(PARTY, 'fedprivacy = "', 'fedprivacy = "9'),
        {"versions": "failed"},
        "install the same on every host",
    ),
    "another Flower that it works with": (
        changed(PARTY, f'flwr = "{version("flwr")}"', f'flwr = "{ANOTHER_FLOWER}"'),
        {"versions": "warning"},
        f"flwr {version('flwr')}, Python {python_version()}; the deployment has flwr {ANOTHER_FLOWER}",
    ),
}
"""Damage to a client's folder, the checks that then do not end well, and words of the answer."""


@pytest.mark.parametrize("wrong", OF_A_CLIENT)
def test_what_is_wrong_with_a_client_is_named(client, wrong):
    spoil, found, words = OF_A_CLIENT[wrong]
    spoil(client)
    verdicts, told = objections(client)
    assert verdicts == found | NOBODY_ANSWERS
    assert words in told


def another_certificate(server):
    keys = write_keys(server.parent / "others", ["localhost"])
    shutil.copy(keys.server_certificate, server / "server.crt")


def another_signing_key(server):
    (server / "signing.key").unlink()
    server_key(server / "signing.key")


def signed_by_a_run(server):
    """A run left its folder with what it has signed; then the ledger was lost."""
    host = Host(server)
    host.run("stays-1", "ledger/ledger")
    verdicts, _ = objections(server)
    assert verdicts == NOT_STARTED
    (server / "ledger" / "ledger.db").unlink()


def on_a_database_that_is_down(server):
    edit(server / RUN, f"sqlite:///{server}/ledger/ledger.db", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    edit(server / RUN, "clients = 1", "clients = 1\nnoise-multiplier = 3.0")


NOT_STARTED = {"connection": "warning", "superlink": "failed", "superexec": "failed", "server": "failed"}
NOT_PLANNED = dict.fromkeys(("run", "signing key", "ledger", "books", "room", "memory", "clients"), "failed")
OF_THE_SERVER = {
    "nothing": (lambda server: None, {}, ""),
    "a key for all": (lambda server: (server / "server.key").chmod(0o640), {"server key": "failed"}, "mode 640"),
    "another certificate": (
        another_certificate,
        {"certificate": "failed", "server key": "failed"},
        "is not signed by ca.crt",
    ),
    "another name": (
        changed(PARTY, 'host = "localhost"', 'host = "fl.example.org"'),
        {"certificate": "failed"},
        "does not hold the name fl.example.org",
    ),
    "another signing key": (another_signing_key, {"signing key": "failed"}, "not the key that the clients heed"),
    "another task": (
        lambda server: edit(server / RUN, f'"{server}/mine.py:Sides"', '"digits"'),
        {"run": "failed"},
        "the clients allow mine.py:Sides",
    ),
    "a seed": (changed(RUN, "clients = 1", "clients = 1\nseed = 0"), {"run": "failed"}, "every client refuses"),
    "no limit": (
        changed(RUN, "epsilon = 3.0", "epsilon = inf\nnoise-multiplier = 1.0"),
        NOT_PLANNED,
        "epsilon is inf, as it is where noise-multiplier is given alone; in a deployment give a finite one.",
    ),
    "no ledger": (lambda server: (server / "ledger" / "ledger.db").write_text("no database"), NOT_PLANNED, "ledger.db"),
    "a ledger that is gone": (signed_by_a_run, {"ledger": "failed", "books": "warning"}, "does not hold entry 3"),
    "a ledger that does not answer": (
        on_a_database_that_is_down,
        {"ledger": "failed", "books": "warning"},
        "not looked at, because the ledger cannot be relied on",
    ),
    "a key not sent": (
        lambda server: (server / "clients" / "hospital-1.pub").unlink(),
        {"clients": "warning"},
        "keys of no client are here",
    ),
}


@pytest.mark.parametrize("wrong", OF_THE_SERVER)
def test_what_is_wrong_with_the_server_is_named(server, wrong):
    spoil, found, words = OF_THE_SERVER[wrong]
    spoil(server)
    verdicts, told = objections(server)
    assert verdicts == found | NOT_STARTED
    assert words in told


ROOM = [  # a host; of its disk: free bytes, free files, all files (none where they are not counted); how the check ends
    ("client", 0, 999, 1000, "failed", "0 MB free on the disk of"),
    ("client", 30_000_000, 3, 1000, "failed", "can hold only 3 more files"),
    ("client", 250_000, 999, 1000, "warning", "and in time 0.3"),
    ("server", 16_000_000, 0, 0, "failed", "a run needs 16 MB"),
    ("server", 16_000_100, 0, 0, "warning", "a run needs 16 MB"),
]


@pytest.mark.parametrize(("side", "free", "files", "all_files", "verdict", "words"), ROOM)
def test_a_full_disk_is_named_before_a_run_is_charged(
    request, monkeypatch, side, free, files, all_files, verdict, words
):
    host = request.getfixturevalue(side)
    disk = SimpleNamespace(f_bavail=free, f_frsize=1, f_files=all_files, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    verdicts, told = objections(host)
    assert verdicts == {"room": verdict} | (NOBODY_ANSWERS if side == "client" else NOT_STARTED)
    assert words in told and "make room there, before a run is charged" in told


@pytest.mark.parametrize(("side", "least"), [("client", 240), ("server", 360)])
def test_memory_that_a_model_does_not_fit_into_is_named_before_a_run_is_charged(request, monkeypatch, side, least):
    """The model has six parameters, 24 bytes."""
    host = request.getfixturevalue(side)
    for available, verdict in ((least - 1, {"memory": "failed"}), (least, {})):
        monkeypatch.setattr(inspection, "attainable_bytes", lambda left=available: left)
        verdicts, told = objections(host)
        assert verdicts == verdict | (NOBODY_ANSWERS if side == "client" else NOT_STARTED)
        assert ("agree on a smaller model" in told) == bool(verdict)


@pytest.mark.parametrize(
    ("begins", "ends", "verdict"),
    [(-1, 400, "ok"), (-1, 32, "ok"), (-1, 28, "warning"), (-1, 1, "warning"), (-9, -1, "failed"), (1, 400, "failed")],
)
def test_a_certificate_lasts_from_its_beginning_to_its_end(begins, ends, verdict):
    now = datetime.now(UTC)
    given = {"not_valid_before_utc": now + timedelta(days=begins), "not_valid_after_utc": now + timedelta(days=ends)}
    (found,) = findings([("certificate", lambda: check_validity(SimpleNamespace(**given), "it"))])
    assert found.verdict == verdict


@contextmanager
def answering(client, keys, *, forbidden=404, fleet=401, date=None):
    """A server of these keys at the client's server's place, which answers so, and tells this date."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(fleet if self.path.startswith("/v1/fleet/") else forbidden)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the base class calls it so

        def date_time_string(self, timestamp=None):
            return date or super().date_time_string(timestamp)

        def log_message(self, *_):
            pass

    port = int(next(line.split()[2] for line in (client / "party.toml").read_text().splitlines() if "port =" in line))
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(keys / "server.crt", keys / "server.key")
    with HTTPServer(("127.0.0.1", port), Answers) as httpd:
        httpd.socket = trust.wrap_socket(httpd.socket, server_side=True)
        threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True).start()
        yield
        httpd.shutdown()


@pytest.mark.parametrize(
    ("answers", "found", "words"),
    [
        ({}, {}, ""),
        *(({"fleet": status}, {"server": "failed"}, "the SuperLink is running") for status in (404, 502, 504)),
        *(({"fleet": status}, {}, "") for status in (200, 415)),
        ({"date": "whenever"}, {"clock": "warning"}, "does not tell its time"),
    ],
)
def test_the_server_is_looked_at_from_outside(client, answers, found, words):
    with answering(client, client.parents[1] / "server", **answers):
        verdicts, told = objections(client)
    assert verdicts == found
    assert words in told


@pytest.mark.parametrize("ahead", [-6, -4, 4, 6])
def test_clocks_that_are_more_than_five_minutes_apart_are_named_whichever_is_ahead(client, ahead):
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=ahead), usegmt=True)
    with answering(client, client.parents[1] / "server", date=date):
        verdicts, told = objections(client)
    assert verdicts == ({"clock": "failed"} if abs(ahead) > 5 else {})
    assert ("from the server's" in told) == bool(verdicts)


def test_the_superlink_s_own_port_is_for_no_other_host(client, monkeypatch):
    """Here every host is this one: its address is taken for another's."""
    monkeypatch.setattr(inspection.ipaddress, "ip_address", lambda _: SimpleNamespace(is_loopback=False))
    with socket.socket() as superlink:
        superlink.bind(("127.0.0.1", 0))
        (own,) = re.findall(r"superlink-port = \d+", (client / "party.toml").read_text())
        edit(client / "party.toml", own, f"superlink-port = {superlink.getsockname()[1]}")
        with answering(client, client.parents[1] / "server"):
            assert objections(client)[0] == {}
            superlink.listen()
            verdicts, told = objections(client)
    assert verdicts == {"interfaces": "failed"} and "can be reached from outside" in told


@pytest.mark.parametrize(("name", "release"), [("fedprivacy", "0.1.9"), ("flwr", "1.40.9"), ("flwr", "9.9.9")])
@pytest.mark.parametrize("side", ["own", "deployment"])
def test_a_release_that_may_not_be_deployed_is_named_whoever_has_it(client, name, release, side, monkeypatch):
    if side == "own":
        monkeypatch.setattr(inspection, "version", lambda asked: release if asked == name else version(asked))
    else:
        edit(client / "party.toml", f'{name} = "{version(name)}"', f'{name} = "{release}"')
    verdicts, told = objections(client)
    why = "whose guarantee can be broken" if name == "fedprivacy" else "works with >="
    assert verdicts["versions"] == "failed" and f"{name} {release}" in told and why in told


@pytest.mark.parametrize("ends", list(product([-1, 1, 40], repeat=2)), ids=str)
def test_a_host_trusts_as_long_as_one_of_its_authorities_lasts(ends, monkeypatch, tmp_path):
    now = datetime.now(UTC)
    every = {"not_valid_before_utc": now - timedelta(days=9), "fingerprint": lambda _: bytes(32)}
    made = [SimpleNamespace(not_valid_after_utc=now + timedelta(days=end), **every) for end in ends]
    monkeypatch.setattr(inspection, "certificates_in", lambda _: made)
    (found,) = findings([("authority", lambda: authorities(tmp_path / "ca.crt"))])
    assert found.verdict == {-1: "failed", 1: "warning", 40: "ok"}[max(ends)]


@pytest.mark.parametrize(("days", "verdict"), [(6, "warning"), (8, "ok")])
def test_a_guard_that_raised_the_ledger_is_named_for_a_week(server, days, verdict, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("fedprivacy.ledger.journal.now", lambda: datetime.now(UTC) - timedelta(days=days))
        with Ledger(f"sqlite:///{server}/ledger/ledger.db") as ledger:
            ledger.open_budgets({"sides/hospital-1": Allowance(PrivacyBudget(3.0, 1e-4), "adaptive")})
            event = PoissonSampledGaussian(0.1, 50.0, NeighbouringRelation.ZERO_OUT)
            ledger.reconcile("sides/hospital-1", {("run", event): 7})
    verdicts, told = objections(server)
    assert verdicts.get("books", "ok") == verdict, told
    assert ("sides/hospital-1 by 7 steps" in told) == (verdict == "warning")


@pytest.mark.parametrize("status", [200, 401, 405, 500])
def test_an_interface_that_answers_anything_but_that_it_is_not_there_is_open(client, status):
    """A server that asks for a login, another method or patience is there to be asked again."""
    with answering(client, client.parents[1] / "server", forbidden=status):
        verdicts, told = objections(client)
    assert verdicts == {"interfaces": "failed"}
    assert "/health, /v1/control/list-nodes can be reached without a login" in told


def test_a_server_of_another_authority_is_not_believed(client, tmp_path):
    write_keys(tmp_path / "others", ["localhost"])
    with answering(client, tmp_path / "others" / "server"):
        verdicts, told = objections(client)
    assert verdicts == {"server": "failed"}
    assert "does not vouch for" in told


def test_who_is_in_order_is_told_what_to_do_next(hosts, client, monkeypatch):
    in_order = lambda *_: iter([Finding("account", CheckResult.OK, "owns it")])  # noqa: E731
    monkeypatch.setattr(client_inspection, "inspect_client", in_order)
    monkeypatch.setattr(server_inspection, "inspect_server", in_order)
    told = CliRunner().invoke(deploy_app, ["check", str(client)]).output.splitlines()
    assert f"audit --node {client}'" in told[-1] and len(told) == 2
    assert "audit" not in CliRunner().invoke(deploy_app, ["check", str(hosts / "server")]).output
