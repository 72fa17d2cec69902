"""The figures show what the run did, for few clients and many, with and without a budget."""

import math
from dataclasses import replace

import pytest

from fedprivacy.figures import epsilon_figure, metric_figure
from fedprivacy.figures.style import EXHAUSTED, SPENDING
from tests.figures.reading import (
    coloured,
    dashed,
    drawn,
    height,
    labels,
    marks,
    text_called,
    texts,
)
from tests.runs.histories import alike, run_history


def two_exhausted():
    """Two of four clients join every round and are stopped, the second after a later start; two go on."""
    joins = {
        "north": lambda n: True,
        "east": lambda n: n > 10,
        "south": lambda n: n % 2 == 0,
        "west": lambda n: n % 3 == 0,
    }
    return run_history(joins, rounds=60, quota=40)


def test_exhausted_clients_are_recognised_without_colour():
    root = drawn(epsilon_figure(two_exhausted().series()))
    assert "Largest privacy loss: ε 2.99 of budget 3; 2 of 4 clients exhausted" in texts(root)
    assert sorted(labels(root)[:2]) == ["2.99 east exhausted", "2.99 north exhausted"]
    assert labels(root)[2:] == ["2.59 south", "2.12 west"]
    diamonds, dots = (coloured(marks(root, "symbol"), colour) for colour in (EXHAUSTED, SPENDING))
    assert len(diamonds) == 2 and len(dots) == 2
    assert len({element.get("d") for element in diamonds + dots}) == 2


@pytest.mark.exhaustive
def test_the_budget_is_a_dashed_rule_at_its_height_and_missing_when_there_is_none():
    limited = drawn(epsilon_figure(alike().series()))
    measured = drawn(epsilon_figure(alike(budget=math.inf).series()))
    (rule,) = dashed(limited)
    assert abs(height(rule) - height(text_called(limited, "3.0"))) < 6
    assert "budget ε = 3" in texts(limited)
    assert not dashed(measured)
    assert "Largest privacy loss: ε 4.98, no budget set" in texts(measured)


def test_an_epsilon_without_a_bound_is_said_and_not_drawn():
    history = alike(clients=2, rounds=5)
    last = history.rounds[-1]
    spent = last.spent | {"client-1": replace(last.spent["client-1"], epsilon=math.inf)}
    unbounded = replace(history, rounds=(*history.rounds[:-1], replace(last, spent=spent)))
    root = drawn(epsilon_figure(unbounded.series()))
    assert "Largest privacy loss: ε ∞ of budget 3" in texts(root)
    assert len(labels(root)) == 1


def test_a_metric_that_is_no_accuracy_has_an_axis_of_its_own():
    shown = texts(drawn(metric_figure(alike(metric="mse", value=lambda n: 2.0 + 1 / n).series())))
    assert "After 60 rounds: mse 2.017" in shown
    assert "3.0" in shown and not {text for text in shown if text.endswith("%") and "mse" not in text}


def test_what_some_rounds_measure_alone_is_joined_and_says_where_it_comes_from():
    history = alike(rounds=7)
    told = {3: 0.5, 6: 0.75}
    rounds = [
        replace(record, metrics=record.metrics | {"clients_accuracy": told[record.round]})
        if record.round in told
        else record
        for record in history.rounds
    ]
    root = drawn(metric_figure(replace(history, rounds=tuple(rounds)).series(), "clients_accuracy"))
    assert "After 6 rounds: clients accuracy 75.0 %" in texts(root)
    assert any("on the clients' own records" in text for text in texts(root))
    assert "After 7 rounds: clients accuracy not measured" in texts(
        drawn(metric_figure(history.series(), "clients_accuracy"))
    )
