"""The API says what the store holds, in pages, as its OpenAPI document says, and refuses what it cannot answer."""

import csv
import functools
import io
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedprivacy.runs.records.store.writer import record_audits
from fedprivacy.values.numbers import plain
from fedprivacy.values.runs import AuditResult
from tests.dashboard.shown import asking, record, serving
from tests.runs.store.made_up import DELTA, facts, growing

API = "/api/v1"


def get(ask, path, code=200, **query):
    answer = ask.get(f"{API}/{path}", params=query)
    assert answer.status_code == code, answer.text
    return answer.json()


def test_runs_are_listed_the_newest_first_and_each_says_where_it_stands_and_what_its_epsilon_means(ask):
    listed = get(ask, "runs")
    assert [run["name"] for run in listed["runs"]] == ["begun", "troubled", "done"]
    assert (listed["total"], listed["problems"]) == (3, [])
    assert [run["name"] for run in get(ask, "runs", search="DON")["runs"]] == ["done"]
    assert [run["name"] for run in get(ask, "runs", status="running", limit=1, offset=1)["runs"]] == ["troubled"]
    assert get(ask, "runs", search="no such run") == {"total": 0, "runs": [], "problems": []}
    run = get(ask, "runs/troubled")
    assert (run["status"], run["rounds"], run["rounds_planned"], run["clients"]) == ("running", 3, 8, 6)
    assert (run["view"], run["accountant"], run["delta_text"], run["relation"]) == ("server", "PLD", "1e-5", "zero-out")
    assert run["states"] == {"active": 2, "exhausted": 1, "failed": 1, "refused": 1, "unreconciled": 1}
    assert run["failures"] == 6
    assert run["metrics"] == ["accuracy", "loss"]
    assert run["last"]["metric_texts"] == {"accuracy": "70.0 %".replace(" ", "\N{NO-BREAK SPACE}"), "loss": "1.25"}
    assert run["worst"]["epsilon_text"] == "0.80" and run["worst"]["budget_text"] == "3"
    for part in ("server", "1e-5", "PLD", "odometer", "what one record of a client says"):
        assert part in run["guarantee"]
    assert "finds at most" in run["guarantee"] and "Computed from epsilon and delta alone" in run["guarantee"]
    assert run["seconds_left"] is not None and not run["seeded"]
    assert get(ask, "runs/done")["seeded"] and get(ask, "runs/done")["phase"] is None
    begun = get(ask, "runs/begun")
    assert (begun["last"], begun["worst"], begun["phase"]["name"]) == (None, None, "starting")


def test_what_is_answered_bears_the_names_of_the_values(ask):
    last = growing([f"client-{n:02d}" for n in range(30)], 12)[-1]
    (told,) = get(ask, "runs/done/rounds", after=11)["rounds"]
    point = plain(last.point)
    assert told["epsilon"] == point["epsilons"]
    same = {name: value for name, value in point.items() if name not in ("at", "epsilons")}
    assert {name: told[name] for name in same} == same
    for client in get(ask, "runs/done/clients")["clients"]:
        account = plain(last.spent[client["client_id"]])
        assert client["budget"] == account.pop("budget_epsilon")
        assert {name: client[name] for name in account} == account


def test_a_client_s_rounds_and_charges_and_what_a_failure_means_and_became_of(ask):
    one = get(ask, "runs/done/clients/client-03/rounds")
    assert one["client"]["client_id"] == "client-03"
    records = growing([f"client-{n:02d}" for n in range(30)], 12)
    assert [r["epsilon"] for r in one["rounds"]] == [r.spent["client-03"].epsilon for r in records[1:]]
    charges = get(ask, "runs/done/charges", client_id="client-03")
    assert [(c["round"], c["state"], c["steps"]) for c in charges["charges"]] == [
        (3, "reserved", 2),
        (2, "committed", 2),
        (1, "committed", 2),
    ]
    assert get(ask, "runs/done/charges", state="reserved")["total"] == 30
    assert get(ask, "runs/done/charges", round=1, limit=1)["charges"][0]["client_id"] == "client-29"
    failures = {f["code"]: f for f in get(ask, "runs/troubled/failures")["failures"]}
    assert {code: (f["charge"], f["times"], f["detail"]) for code, f in failures.items()} == {
        "guard-unusable": ("returned", 2, ""),
        "wrong-shape": ("stands", 2, "0.weight"),
        "no-reply": ("stands", 2, ""),
    }
    assert failures["no-reply"]["client_ids"] == ["silent"] and failures["no-reply"]["last_round"] == 3
    text = ask.get(f"{API}/runs/troubled/figures/cost.csv").text
    assert "'=cmd()" in text and "\n=cmd()" not in text


def test_audits_stand_beside_the_guarantee(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    record(url, facts("audited"), growing(["a"], 2))
    ask = asking(tmp_path)
    assert get(ask, "runs/audited/audits") == {"audits": []}
    get(ask, "runs/audited/figures/audit", 409)
    found = AuditResult(0.0, "canaries", "a", 0.7, 0.95, math.inf, DELTA, "PLD", "server")
    violated = AuditResult(0.0, "replay", "a", 0.7, 0.95, 0.5, DELTA, "PLD", "server")
    record_audits(url, "audited", [found, violated])
    audits = get(ask, "runs/audited/audits")["audits"]
    assert [(a["upper"], a["verdict"]) for a in audits] == [(None, "consistent"), (0.5, "violated")]
    assert "canaries" in json.dumps(get(ask, "runs/audited/figures/audit"))


@pytest.mark.parametrize("name", ["metric", "epsilon", "tradeoff", "cost"])
def test_every_figure_is_vega_lite_and_csv(ask, name):
    light = get(ask, f"runs/done/figures/{name}", clients=["client-03"], width=700)
    dark = get(ask, f"runs/done/figures/{name}", theme="dark", clients=["client-03"], width=700)
    assert light["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert light["config"]["background"] != dark["config"]["background"]
    answer = ask.get(f"{API}/runs/done/figures/{name}.csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="done-{name}.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) >= 12 and all(None not in row.values() for row in rows)
    assert get(ask, f"runs/begun/figures/{name}", 409)["detail"]


def test_a_run_before_its_first_round_has_nothing_to_draw(tmp_path):
    record(f"sqlite:///{tmp_path / 'ledger.db'}", facts("early"), growing(["a"], 0))
    for name in ("metric", "epsilon", "tradeoff", "cost"):
        assert "no finished round" in get(asking(tmp_path), f"runs/early/figures/{name}", 409)["detail"]
        assert "no numbers" in get(asking(tmp_path), f"runs/early/figures/{name}.csv", 409)["detail"]


def test_runs_are_compared(ask):
    for name in ("metric", "epsilon", "tradeoff"):
        spec = json.dumps(get(ask, f"compare/figures/{name}", runs=["done", "troubled"]))
        assert "done" in spec and "troubled" in spec
        rows = ask.get(f"{API}/compare/figures/{name}.csv", params={"runs": ["done", "troubled"]}).text
        assert len(rows.splitlines()) == 1 + 12 + 3
    assert "two different" in get(ask, "compare/figures/metric", 409, runs=["done", "done"])["detail"]
    get(ask, "compare/figures/metric", 404, runs=["done", "none"])


def test_what_is_unknown_or_out_of_bounds_is_refused(ask):
    for path in ("runs/none", "runs/none/events", "runs/done/clients/nobody/rounds", "runs/none/figures/metric"):
        assert get(ask, path, 404)["detail"]
    for path, query in (
        ("runs", {"limit": 501}),
        ("runs", {"search": "x" * 201}),
        ("runs/done/clients", {"sort": "reason; DROP TABLE runs"}),
        ("runs/done/clients", {"state": "unknown"}),
        ("runs/done/figures/metric", {"width": 10_000}),
        ("runs/done/figures/unknown", {}),
        ("runs/done/figures/epsilon", {"clients": ["a"] * 11}),
        ("compare/figures/metric", {"runs": ["done"] * 9}),
    ):
        get(ask, path, 422, **query)


HANG = 60.0
"""Seconds after which something hangs."""

THERE = {"run_id": ("done", "troubled", "begun"), "client_id": ("client-03", "=cmd()", "silent")}


@pytest.fixture(scope="module")
def questions(runs):
    """Questions about a path: sensible ones, of runs that there are and others, and forbidden ones."""
    import schemathesis

    @st.composite
    def named(draw, sensible):
        """Name runs and clients that exist: a made-up name is always unknown."""
        case = draw(sensible)
        for name in [name for name in THERE if name in case.path_parameters]:
            case.path_parameters[name] = draw(st.sampled_from(THERE[name]))
        return case

    with serving(runs) as address:
        described = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json", timeout=HANG)

        @functools.cache
        def about(path):
            kinds = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
            sensible, forbidden = (described[path]["GET"].as_strategy(generation_mode=kind) for kind in kinds)
            return st.one_of(named(sensible), sensible, forbidden)

        yield about


PATHS = sorted(path for path in asking().app.openapi()["paths"] if not path.endswith("events"))
"""Streams of events never end; `test_live` asks for them."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", PATHS)
@given(data=st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_any_question_is_answered_as_described(questions, path, data):
    data.draw(questions(path)).call_and_validate(timeout=HANG)
