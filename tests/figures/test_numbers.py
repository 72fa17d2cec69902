"""Figures are drawn from a history's bounded numbers, of which the tables have every one, unrounded."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedprivacy.figures import observations
from fedprivacy.runs.records.run import Run
from fedprivacy.values.runs import AuditResult, RoundResult
from fedprivacy.values.series import CostMap
from tests.runs.histories import alike, run_history, unlike


def test_costs_are_what_epsilons_grew_by_and_growth_that_is_not_known_is_not_a_number():
    history = unlike(4, rounds=6)
    nothing = {name: replace(client, epsilon=0.0) for name, client in history.rounds[0].spent.items()}
    unbounded = {name: replace(client, epsilon=math.inf) for name, client in history.rounds[3].spent.items()}
    history = replace(history, start=RoundResult(0, {}, nothing, (), {}))
    cost = history.costs()
    assert cost.first == cost.last == (1, 2, 3, 4, 5, 6)
    spent = np.array([[each.spent[name].epsilon for each in history.rounds] for name in cost.client_ids])
    assert cost.growth.cumsum(axis=1) == pytest.approx(spent) and np.all(np.diff(spent[:, -1]) <= 0)
    lost = (*history.rounds[:3], replace(history.rounds[3], spent=unbounded), *history.rounds[4:])
    unknown = np.isnan(replace(history, rounds=lost).costs().growth)
    assert unknown.tolist() == [[False, False, False, True, True, False]] * 4


def test_clients_and_figures_that_are_not_there_and_too_many_clients_are_refused():
    history = alike(clients=11, rounds=1)
    with pytest.raises(ValueError, match=r"no client 'nobody'; choose"):
        history.series(["client-1", "nobody"])
    with pytest.raises(ValueError, match=r"11 clients are chosen, and 10 can be; choose fewer"):
        history.series([f"client-{n}" for n in range(1, 12)])
    figures = Run(Path(), history).figures
    assert figures.named("metric", metric="loss").chart.to_dict() == figures.metric("loss").chart.to_dict()
    with pytest.raises(ValueError, match=r"no figure 'epsilons'; choose from metric, epsilon, tradeoff, cost\."):
        figures.named("epsilons")


def test_tables_of_metrics_and_costs_leave_open_what_is_not_known():
    history = alike(rounds=2, value=lambda n: math.nan if n == 2 else n / 10)
    rows = observations.metric_rows(history.series())
    assert rows == [{"round": n, "metric": "accuracy", "value": value} for n, value in ((1, 0.1), (2, None))]
    growth = np.array([[math.nan, 0.1], [0.0, math.inf]])
    assert observations.cost_rows(CostMap(("a", "b"), (1, 3), (2, 4), growth)) == [
        {"client": "a", "first_round": 3, "last_round": 4, "growth": 0.1},
        {"client": "b", "first_round": 1, "last_round": 2, "growth": 0.0},
    ]


def test_every_line_of_the_epsilon_figure_after_every_round():
    joins = {"a": lambda n: True, "b": lambda n: True, "c": lambda n: n > 1}
    history = run_history(joins, rounds=3, quota=2)
    found = observations.epsilon_rows(history.series(["b"]))
    assert [(row["line"], row["clients"], row["round"], row["state"]) for row in found] == [
        (line, clients, n, "spending" if n < last else "exhausted")
        for line, clients, last in (("a and 1 more", 2, 2), ("c", 1, 3), ("b", 1, 2))
        for n in (1, 2, 3)
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


def test_the_rounds_in_which_clients_of_a_fan_were_exhausted_are_marked_at_their_epsilon():
    history, first = unlike(30, rounds=20, quota=12), {}
    for record in history.rounds:
        for client_id in record.exhausted:
            first.setdefault(client_id, (record.round, record.spent[client_id].epsilon))
    assert len(first) > 1 and set(history.series().turns) == set(first.values())


def test_audits_with_their_verdict_and_a_time_that_people_read():
    audit = AuditResult(0.0, "canaries", "", 1.23456789, 0.95, math.inf, 1e-5, "PLD", "server")
    told = [observations.audit_rows([replace(audit, upper=upper)])[0] for upper in (math.inf, 1.23456789, 1.0)]
    given = {"lower": 1.23456789, "attack": "canaries", "confidence": 0.95, "delta": 1e-5}
    assert told[0].items() >= {"at": "1970-01-01T00:00:00+00:00", "upper": None, "view": "server", **given}.items()
    assert [each["verdict"] for each in told] == ["consistent", "consistent", "violated"]
