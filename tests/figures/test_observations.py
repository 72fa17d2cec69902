"""The tables hold what the figures show, unrounded."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedprivacy.figures import observations
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.series import CostMap
from tests.runs.histories import alike, run_history, unlike


def test_a_metric_after_every_round():
    history = alike(rounds=3, value=lambda n: math.nan if n == 2 else n / 10)
    assert observations.metric_rows(history.series()) == [
        {"round": 1, "metric": "accuracy", "value": 0.1},
        {"round": 2, "metric": "accuracy", "value": None},
        {"round": 3, "metric": "accuracy", "value": 0.3},
    ]
    assert observations.metric_rows(history.series(), "loss")[0] == {"round": 1, "metric": "loss", "value": None}


def test_every_line_of_the_epsilon_figure_after_every_round():
    joins = {"a": lambda n: True, "b": lambda n: True, "c": lambda n: n > 1}
    history = run_history(joins, rounds=3, quota=2)
    found = observations.epsilon_rows(history.series(["b"]))
    assert [(row["line"], row["clients"], row["round"], row["state"]) for row in found] == [
        *(("a and 1 more", 2, n, "spending" if n < 2 else "exhausted") for n in (1, 2, 3)),
        *(("c", 1, n, "spending" if n < 3 else "exhausted") for n in (1, 2, 3)),
        *(("b", 1, n, "spending" if n < 2 else "exhausted") for n in (1, 2, 3)),
    ]
    assert [row["epsilon"] for row in found][:3] == [record.spent["a"].epsilon for record in history.rounds]
    assert {row["budget"] for row in found} == {3.0}


def test_a_fan_has_its_quantiles_and_the_lines_at_its_edges():
    history = unlike(30, rounds=20, budget=math.inf)
    found = observations.epsilon_rows(history.series(["client-7"]))
    spent = sorted(client.epsilon for client in history.last.spent.values())
    last = {row["line"]: row["epsilon"] for row in found if row["round"] == 20}
    assert last["all clients: median"] == pytest.approx((spent[14] + spent[15]) / 2)
    assert last["all clients: three quarters"] == pytest.approx(np.quantile(spent, 0.75))
    assert last["all clients: most"] == spent[-1] and last["all clients: least"] == spent[0]
    assert last["client-7"] == history.last.spent["client-7"].epsilon
    assert len(last) in (7, 8)  # perhaps client-7 is at an edge
    assert {row["budget"] for row in found} == {None}


def test_costs_that_are_known():
    growth = np.array([[math.nan, 0.1], [0.0, math.inf]])
    assert observations.cost_rows(CostMap(("a", "b"), (1, 3), (2, 4), growth)) == [
        {"client": "a", "first_round": 3, "last_round": 4, "growth": 0.1},
        {"client": "b", "first_round": 1, "last_round": 2, "growth": 0.0},
    ]


def test_audits_with_their_verdict_and_a_time_that_people_read():
    audit = AuditResult(0.0, "canaries", "", 1.23456789, 0.95, math.inf, 1e-5, "PLD", "server")
    (sound, broken) = observations.audit_rows([audit, replace(audit, upper=1.0)])
    assert sound == {
        "at": "1970-01-01T00:00:00+00:00",
        "attack": "canaries",
        "client_id": "",
        "lower": 1.23456789,
        "confidence": 0.95,
        "upper": None,
        "delta": 1e-5,
        "accountant": "PLD",
        "view": "server",
        "verdict": "consistent",
    }
    assert broken["verdict"] == "violated"
