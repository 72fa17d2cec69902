"""The alerts of docs/how-to/dashboard.md: each fires once its condition is made true, on a host or in a run."""

import re
import socket
import sqlite3
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parsed
from prometheus_client.samples import Sample

from fedprivacy.commands.deploy import deploy_app
from fedprivacy.runs.records import catalogue
from tests.dashboard.promql import answer, labels_of, selectors
from tests.dashboard.shown import asking, record, troubled
from tests.deploy.written_hosts import deployment
from tests.runs.store.made_up import facts, finished, growing, spent
from tests.terminal import CliRunner

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "dashboard.md").read_text()
SCRAPE, GROUPS = (yaml.safe_load(part) for part in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL))
RULES = {rule["alert"]: rule for group in GROUPS["groups"] for rule in group["rules"]}
UP = Sample("up", {"job": "fedprivacy", "instance": "fl.example.org:8050"}, 1.0)


def fires(alert, samples, label, later=0.0):
    """The values of a label for which an alert of the guide fires, now or some seconds later."""
    return {labels.get(label) for labels, _ in answer(RULES[alert]["expr"], samples, time.time() + later)}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The server's host, of which no process runs."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    return deployment(tmp_path, sys.prefix, clients=["hospital-1"]) / "server"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "_FRESH", 0.0)
    return tmp_path / "runs"


def checked(folder):
    """The metrics that node_exporter finds after `deploy check --metrics`."""
    file = folder.parent / "fedprivacy.prom"
    CliRunner().invoke(deploy_app, ["check", str(folder), "--metrics", str(file)])
    assert file.stat().st_mode & 0o777 == 0o644
    return samples_in(file.read_text())


def samples_in(text):
    return [sample for family in parsed(text) for sample in family.samples]


def scraped(folder):
    """The metrics that Prometheus reads from the dashboard of a folder of runs."""
    return [*samples_in(asking(folder).get("/metrics").text), UP]


def test_every_rule_asks_for_metrics_and_labels_that_are_there(server, runs):
    record(f"sqlite:///{runs / 'troubled' / 'ledger.db'}", facts("run-7", name="troubled", rounds=8), troubled())
    samples = [*scraped(runs), *checked(server)]
    assert SCRAPE["scrape_configs"][0]["authorization"]["credentials_file"]
    for rule in RULES.values():
        assert selectors(rule["expr"])
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= labels_of(rule["expr"], samples)
    table = GUIDE[GUIDE.index("| alert |") :]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == RULES.keys()


def test_a_dead_superexec_is_alerted(server):
    port = tomllib.loads((server / "party.toml").read_text())["superexec-port"]
    with socket.create_server(("127.0.0.1", port)):
        assert "superexec" not in fires("HostNotReady", checked(server), "check")
    samples = checked(server)
    assert "superexec" in fires("HostNotReady", samples, "check")
    assert not fires("HostUnchecked", samples, "party", later=7000)
    assert fires("HostUnchecked", samples, "party", later=7300) == {"server"}


def test_a_certificate_is_alerted_before_it_ends(server):
    assert not fires("HostNeedsCare", checked(server), "check")
    for days, alerted in ((31, set()), (29, {"certificate"})):
        done = CliRunner().invoke(deploy_app, ["renew", str(server.parent), "--days", str(days)])
        assert done.exit_code == 0, done.output
        assert fires("HostNeedsCare", checked(server), "check") == alerted


def test_a_guard_that_cannot_be_used_is_alerted_and_what_is_private_is_not_told(server):
    client = server.parent / "clients" / "hospital-1"
    samples = checked(client)
    assert "guard" not in fires("HostNotReady", samples, "check")
    assert not any(sample.labels.get("check") == "cells" for sample in samples)
    (client / "guard" / "guard.log").write_bytes(b"no guard")
    assert "guard" in fires("HostNotReady", checked(client), "check")


def test_a_budget_that_is_nearly_spent_is_alerted(runs):
    for number, (epsilon, alerted) in enumerate(((2.69, set()), (2.71, {"spending"}))):
        account = [spent("a", epsilon, budget=3.0)]
        folder = runs / str(number)
        record(f"sqlite:///{folder / 'ledger.db'}", facts("one", name="spending"), [finished(0, account)])
        assert fires("BudgetNearlySpent", scraped(folder), "name") == alerted


def test_clients_that_are_left_out_of_a_run_are_alerted(runs):
    record(f"sqlite:///{runs / 'well' / 'ledger.db'}", facts("run-1", name="well"), growing(["a"], 1))
    assert not fires("ClientLeftOut", scraped(runs), "state")
    record(f"sqlite:///{runs / 'bad' / 'ledger.db'}", facts("run-7", name="bad", rounds=8), troubled())
    assert fires("ClientLeftOut", scraped(runs), "state") == {"refused", "failed"}


def test_a_run_that_fell_silent_and_a_dashboard_that_cannot_read_are_alerted(runs):
    file = runs / "one" / "ledger.db"
    record(f"sqlite:///{file}", facts("one", name="silent"), growing(["a"], 1))
    assert not fires("RunSilent", scraped(runs), "name") and not fires("RunUnwatched", scraped(runs), "instance")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE recorded_runs SET updated = updated - 121")
    connection.close()
    assert fires("RunSilent", scraped(runs), "name") == {"silent"}
    (runs / "two").mkdir()
    (runs / "two" / "ledger.db").write_bytes(b"no database" * 1000)
    assert fires("RunUnwatched", scraped(runs), "instance")
    assert fires("RunUnwatched", [UP._replace(value=0.0)], "instance") == {"fl.example.org:8050"}
