"""A history becomes the bounded numbers that figures are drawn from."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedprivacy.values.runs import RoundResult
from fedprivacy.values.series import MOST_CURVES, EpsilonSpread
from tests.runs.histories import alike, unlike


def test_rounds_become_points():
    history = alike(clients=3, rounds=2, quota=2, failures={("client-2", 1): "no-reply"})
    last = replace(history.rounds[-1], unreconciled=("client-2",))
    series = replace(history, rounds=(history.rounds[0], last)).series()
    first, end = series.points
    assert (first.round, first.clients, first.participants, first.failed, first.exhausted) == (1, 3, 2, 1, 0)
    assert (end.round, end.participants, end.exhausted, end.unreconciled) == (2, 3, 3, 1)
    assert end.epsilons == EpsilonSpread.of([0.996 * 3.0] * 3)
    assert end.metrics == last.metrics
    assert series.worst == (last.max_epsilon, 3.0) and series.budgets == (3.0,)


@pytest.mark.exhaustive
def test_few_curves_are_whole_and_many_are_a_fan_with_its_edges_and_turns():
    few = unlike(MOST_CURVES, rounds=60, quota=20).series()
    assert sum(len(curve.client_ids) for curve in few.curves) == MOST_CURVES
    assert few.outer == () and few.turns == ()
    history = unlike(200, rounds=80, quota=40)
    many = history.series()
    assert many.curves is None
    most, least = many.outer
    spent = [client.epsilon for client in history.last.spent.values()]
    assert (most.epsilons[-1], least.epsilons[-1]) == (max(spent), min(spent))
    first = {}
    for record in history.rounds:
        for client_id in record.exhausted:
            first.setdefault(client_id, (record.round, record.spent[client_id].epsilon))
    assert set(many.turns) == set(first.values())


def test_a_client_that_is_not_there_and_too_many_clients_are_refused():
    history = alike(clients=11, rounds=1)
    with pytest.raises(ValueError, match=r"no client 'nobody'; choose"):
        history.series(["client-1", "nobody"])
    with pytest.raises(ValueError, match=r"11 clients are chosen, and 10 can be; choose fewer"):
        history.series([f"client-{n}" for n in range(1, 12)])


def started(history):
    """With a state before the first round in which nobody had spent anything."""
    first = history.rounds[0].spent
    spent = {name: replace(client, epsilon=0.0) for name, client in first.items()}
    return replace(history, start=RoundResult(0, {}, spent, (), {}))


def test_costs_are_what_epsilons_grew_by():
    history = started(unlike(4, rounds=6))
    cost = history.costs()
    assert cost.first == cost.last == (1, 2, 3, 4, 5, 6)
    spent = {client_id: history.last.spent[client_id].epsilon for client_id in cost.client_ids}
    assert list(spent.values()) == sorted(spent.values(), reverse=True) and len(spent) == 4
    assert cost.growth.sum(axis=1) == pytest.approx(list(spent.values()))
    assert cost.growth[0, 2] == pytest.approx(
        history.rounds[2].spent[cost.client_ids[0]].epsilon - history.rounds[1].spent[cost.client_ids[0]].epsilon
    )


def test_growth_that_is_not_known_is_not_a_number():
    history = alike(clients=2, rounds=3)
    unbounded = {name: replace(client, epsilon=math.inf) for name, client in history.rounds[2].spent.items()}
    history = replace(history, rounds=(*history.rounds[:2], replace(history.rounds[2], spent=unbounded)))
    assert np.isnan(history.costs().growth).tolist() == [[True, False, True]] * 2
