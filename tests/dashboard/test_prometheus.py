"""Prometheus is told what the store holds, in few and true numbers; Grafana asks for nothing else."""

import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed
from prometheus_client.samples import Sample

from fedprivacy.dashboard.collector import DAY, MOST_ENDED, WEEK, told_of
from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records import catalogue as catalogues
from fedprivacy.runs.records.store import RunRecording, StoredRun
from fedprivacy.values.runs import RunStanding, RunStatus
from fedprivacy.values.spent import REASONS
from tests.dashboard.promql import labels_of, selected, selectors
from tests.dashboard.shown import asking, record, troubled
from tests.ledger import conftest
from tests.runs.store.made_up import facts, finished, growing, spent

url = conftest.url

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
BOARD = json.loads((HOW_TO / "grafana-dashboard.json").read_text())
GUIDE = (HOW_TO / "dashboard.md").read_text()
QUERIES = [(panel, target) for panel in BOARD["panels"] for target in panel["targets"]]
HOSTILE = [
    'say "no"',
    "two\nlines",
    "back\\slash",
    "ends in \\",
    "not a\\nbreak",
    "a\rreturn",
    '"} 1\nforged{x="',
    "ε,δ={}",
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A listing is made anew each time."""
    monkeypatch.setattr(catalogues, "_FRESH", 0.0)


def scraped(ask):
    """The families of a scrape, none of whose series comes twice."""
    answer = ask.get("/metrics")
    assert answer.status_code == 200, answer.text
    families = list(parsed(answer.text))
    series = [(s.name, *sorted(s.labels.items())) for family in families for s in family.samples]
    assert len(series) == len(set(series))
    return families


def samples_of(ask):
    return [sample for family in scraped(ask) for sample in family.samples]


def told(samples, name, *labels):
    """The values of a metric by the values of some labels; without labels, by run."""
    found = [sample for sample in samples if sample.name == f"fedprivacy_{name}"]
    return {tuple(s.labels[label] for label in labels) or s.labels["run"]: s.value for s in found}


def at(folder, name):
    return f"sqlite:///{folder / name / 'ledger.db'}"


@pytest.fixture(scope="module")
def in_trouble(tmp_path_factory):
    """Samples of a run with failures, budgets and several states, and one that Prometheus adds."""
    folder = tmp_path_factory.mktemp("runs")
    record(at(folder, "troubled"), facts("run-7", name="troubled", rounds=8), troubled())
    return [*samples_of(asking(folder)), Sample("up", {"job": "fedprivacy", "instance": "fl.example.org:8050"}, 1.0)]


def test_a_run_is_told_of_as_it_stands(url):
    before = time.time()
    record(url, facts("run-7", name="troubled", task="tasks.py:Wards", rounds=8), troubled())
    families = scraped(asking(url))
    words = {family.name: family.documentation for family in families}
    for name in ("epsilon", "client_epsilon", "epsilon_budget_share_max"):
        assert all(part in words[f"fedprivacy_{name}"] for part in ("server's view", "PLD accountant", "elta"))
    samples = [sample for family in families for sample in family.samples]
    run = {"run": "run-7", "name": "troubled", "task": "Wards"}
    assert all(s.labels.items() >= run.items() for s in samples if s.name != "fedprivacy_databases_unreadable")
    (info,) = [s for s in samples if s.name == "fedprivacy_run_info"]
    assert info.value == 1.0
    assert info.labels == run | {
        **{"status": "running", "strategy": "fedavg", "privacy": "true", "seeded": "false"},
        **{"relation": "zero-out", "unit": "record", "view": "server", "accountant": "PLD", "delta": "1e-5"},
    }
    assert told(samples, "run_round") == {"run-7": 3.0}
    assert told(samples, "run_rounds_planned") == {"run-7": 8.0}
    assert told(samples, "run_noise_multiplier") == {"run-7": 1.5}
    assert before <= told(samples, "run_last_sign_of_life_seconds")["run-7"] <= time.time()
    assert told(samples, "run_metric", "metric") == {("accuracy",): 0.7, ("loss",): 1.25}
    states = {"active": 2, "spent as planned": 0, "exhausted": 1, "refused": 1, "failed": 1, "unreconciled": 1}
    assert told(samples, "clients", "state") == {(state,): n for state, n in states.items()}
    assert told(samples, "updates_averaged") == {"run-7": 3.0}
    failed = dict.fromkeys(("guard-unusable", "wrong-shape", "no-reply"), 2.0)
    assert told(samples, "updates_failed_total", "reason") == {(each,): failed.get(each, 0.0) for each in REASONS}
    assert told(samples, "epsilon_budget") == {"run-7": 3.0}
    assert told(samples, "epsilon_budget_share_max") == {"run-7": 0.8 / 3}
    quantiles = dataclasses.asdict(troubled()[-1].point.epsilons).values()
    assert list(told(samples, "epsilon", "quantile").values()) == list(quantiles)
    left = dict.fromkeys(("well", "refusing", "failing", "silent", "=cmd()"), 3.0) | {"spent": 0.0}
    assert told(samples, "client_rounds_left", "client_id") == {(name,): n for name, n in left.items()}
    assert told(samples, "client_epsilon", "client_id", "delta") == {(name, "1e-5"): 0.8 for name in left}


@pytest.mark.parametrize("parse", [parsed, parsed_openmetrics])
def test_names_that_would_break_the_format_arrive_as_they_are(tmp_path, parse):
    accounts = [spent(name, 0.1 * (n + 1)) for n, name in enumerate(HOSTILE)]
    failures = dict.fromkeys(HOSTILE, "no-reply")
    task = 'tasks.py:"Wards"\n\\'
    rounds = [finished(0, accounts), finished(1, accounts, failures=failures, **{'F1 "macro"\n': 0.5})]
    record(at(tmp_path, "one"), facts("run-1", name='a "run"\\\n', task=task, strategy="x\ny"), rounds)
    accept = "text/plain" if parse is parsed else "application/openmetrics-text"
    answer = asking(tmp_path).get("/metrics", headers={"accept": f"{accept};version=1.0.0,*/*;q=0.1"})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(f"{accept}; version=")
    samples = [sample for family in parse(answer.text) for sample in family.samples]
    epsilons = told(samples, "client_epsilon", "name", "task", "client_id")
    expected = {('a "run"\\\n', '"Wards"\n\\', name): 0.1 * (n + 1) for n, name in enumerate(HOSTILE)}
    assert epsilons == pytest.approx(expected)
    assert told(samples, "run_metric", "metric") == {('F1 "macro"\n',): 0.5}
    assert not any("forged" in sample.name for sample in samples)


@pytest.mark.exhaustive
def test_without_the_library_the_dashboard_opens_and_metrics_says_what_to_install():
    script = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from tests.dashboard.shown import asking\n"
        "answer = asking(token=None).get('/metrics')\n"
        "print(answer.status_code, answer.json()['detail'])"
    )
    said = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("501 ") and "install 'fedprivacy[prometheus]'" in said.stdout


def a_run(name, ago, status=RunStatus.RUNNING):
    now = time.time()
    return RunStanding(facts(name), status, None, now - ago - 100, now - ago, 1, None)


def test_of_runs_that_ended_the_newest_of_the_last_day_are_told_of():
    running = [a_run(f"running-{n}", 60.0 * n) for n in range(MOST_ENDED + 10)]
    ended = [a_run(f"ended-{n}", 60.0 * n, RunStatus.FINISHED) for n in range(MOST_ENDED + 10)]
    names = [run.facts.name for run in told_of([*ended, *running])]
    assert names == [run.facts.name for run in running + ended[:MOST_ENDED]]
    old = [a_run("yesterday", DAY + 60, status) for status in (RunStatus.FINISHED, RunStatus.STOPPED, RunStatus.FAILED)]
    assert not list(told_of(old))
    silent = [a_run("since yesterday", DAY + 60), a_run("for a week", WEEK + 60)]
    assert [run.facts.name for run in told_of(silent)] == ["since yesterday"]


@pytest.mark.exhaustive
def test_a_run_is_read_again_only_when_it_has_changed(tmp_path, monkeypatch):
    read, tally = [], StoredRun.tally
    monkeypatch.setattr(StoredRun, "tally", lambda run: read.append(run.facts.run_id) or tally(run))
    record(at(tmp_path, "ended"), facts("ended"), growing(["a"], 1), RunStatus.FINISHED)
    record(at(tmp_path, "running"), facts("running"), [])
    recording = RunRecording(at(tmp_path, "running"), facts("running"))
    rounds, ask = growing(["a"], 3), asking(tmp_path)
    for one in rounds:
        recording.add(one)
        recording.flush()
        for _ in range(2):
            samples = samples_of(ask)
            assert told(samples, "client_epsilon", "run", "client_id")["running", "a"] == one.spent["a"].epsilon
            assert told(samples, "epsilon_budget") == {"ended": 3.0, "running": 3.0}
    recording.close()
    assert sorted(read) == ["ended"] + ["running"] * len(rounds)


def test_a_store_that_cannot_be_read_hides_no_other(tmp_path, monkeypatch):
    for name in ("one", "two", "broken"):
        record(at(tmp_path, name), facts(name), growing(["a"], 1))
    (tmp_path / "broken" / "ledger.db").write_bytes(b"no database" * 1000)
    tally = StoredRun.tally

    def away(run):
        if run.facts.run_id == "one":
            raise LedgerError("it is away")
        return tally(run)

    monkeypatch.setattr(StoredRun, "tally", away)
    samples = samples_of(asking(tmp_path))
    assert [s.value for s in samples if s.name == "fedprivacy_databases_unreadable"] == [1.0]
    assert set(told(samples, "run_round")) == {"one", "two"}
    assert set(told(samples, "epsilon_budget")) == {"two"}


def filled_in(query, *, run="run-7", name="troubled"):
    """A query as Grafana sends it for one run."""
    return query.replace("$__rate_interval", "1m").replace("$run", run).replace("$name", name)


def test_every_query_and_variable_of_the_grafana_dashboard_finds_what_it_asks_for(in_trouble):
    for _, target in QUERIES:
        query = filled_in(target["expr"])
        assert "$" not in query
        shown = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
        assert shown <= labels_of(query, in_trouble) and (shown or target.get("format") == "table"), query
        every_run = filled_in(target["expr"], run="(no-such-run|run-7)", name="(troubled)")
        assert all(selected(selector, in_trouble) for selector in selectors(every_run)), query
    offered = {}
    for variable in BOARD["templating"]["list"][1:]:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", filled_in(variable["definition"])).groups()
        offered[variable["name"]] = {s.labels[label] for one in selectors(selector) for s in selected(one, in_trouble)}
    assert offered == {"name": {"troubled"}, "run": {"run-7"}}


def test_no_epsilon_is_rounded_down_in_grafana():
    """Grafana rounds to the nearest number of so many decimals; what comes out of the query has no more."""
    rounded = [(p, t) for p, t in QUERIES if re.search(r"fedprivacy_(client_)?epsilon(?!_budget\b)", t["expr"])]
    assert len(rounded) == 4
    for panel, target in rounded:
        assert re.match(r"ceil\(1000 \* [^/]+\) / 1000", target["expr"]), target["expr"]
        settings = panel["fieldConfig"]["defaults"]
        if target.get("format") == "table":
            names = panel["transformations"][-1]["options"]["renameByName"]
            column = names[f"Value #{target['refId']}"]
            (of_column,) = (o for o in panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == column)
            settings = {part["id"]: part["value"] for part in of_column["properties"]}
        percent = settings.get("unit") == "percentunit"
        assert percent is ("share" in target["expr"])
        assert settings["decimals"] == (1 if percent else 3)


def test_the_guide_lists_every_metric_with_its_labels(in_trouble):
    common = {"run", "name", "task"}
    known = {s.name: set(s.labels) - common for s in in_trouble if s.name != "up"}
    own = GUIDE[: GUIDE.index("## Tell Prometheus what deploy check finds")]
    table = re.findall(r"^\| (`fedprivacy_[^|]*) \|([^|]*)\|", own, re.MULTILINE)
    listed = {name: set(re.findall(r"\w+", labels)) for row, labels in table for name in re.findall(r"`(\w+)`", row)}
    assert listed == known
