"""The figures show what the run did, for few clients and many, with and without a budget."""

import math
from dataclasses import replace

import pytest

from fedprivacy.figures import epsilon_figure, metric_figure, run_figure, save_png
from fedprivacy.figures.style import EXHAUSTED, INK, SPENDING, SPENT
from fedprivacy.values.wording import epsilon_text
from tests.figures.reading import (
    SVG,
    coloured,
    dashed,
    drawn,
    height,
    labels,
    marks,
    text_called,
    texts,
    written,
)
from tests.runs.histories import alike, run_history, unlike


def two_exhausted():
    """Two of four clients join every round and are stopped, the second after a later start; two go on."""
    joins = {
        "north": lambda n: True,
        "east": lambda n: n > 10,
        "south": lambda n: n % 2 == 0,
        "west": lambda n: n % 3 == 0,
    }
    return run_history(joins, rounds=60, quota=40)


def test_the_panels_say_what_was_reached_and_what_epsilon_is_for():
    shown = written(drawn(run_figure(alike(rounds=30).series())))
    assert "After 30 rounds: accuracy 77.1 %" in shown
    assert "task digits, global model on the server's public records, after each round" in shown
    assert "Largest privacy loss: ε 2.12 of budget 3\n" in shown
    assert {"0 %", "100 %"} <= set(shown.splitlines())


def test_clients_with_one_curve_are_one_line_that_says_how_many_they_are():
    root = drawn(epsilon_figure(alike(200, rounds=30).series()))
    assert len(marks(root, "line")) == 1 and not marks(root, "area")
    assert labels(root) == ["2.12 200 clients"]


def test_exhausted_clients_are_recognised_without_colour():
    root = drawn(epsilon_figure(two_exhausted().series()))
    assert "Largest privacy loss: ε 2.99 of budget 3; 2 of 4 clients exhausted" in texts(root)
    assert sorted(labels(root)[:2]) == ["2.99 east exhausted", "2.99 north exhausted"]
    assert labels(root)[2:] == ["2.59 south", "2.12 west"]
    diamonds, dots = (coloured(marks(root, "symbol"), colour) for colour in (EXHAUSTED, SPENDING))
    assert len(diamonds) == 2 and len(dots) == 2
    assert len({element.get("d") for element in diamonds + dots}) == 2


def test_clients_that_spend_their_budget_in_the_last_round_are_green_and_squares():
    root = drawn(epsilon_figure(alike(rounds=60).series()))
    assert "Largest privacy loss: ε 2.99 of budget 3; all spent as planned" in texts(root)
    assert labels(root) == ["2.99 10 clients"]
    (label,) = (text for text in root.iter(f"{SVG}text") if (text.text or "").endswith("\N{EN SPACE}10 clients"))
    assert label.get("fill") == SPENT and not coloured(root.iter(), EXHAUSTED)
    assert len(coloured(marks(root, "symbol"), SPENT)) == 1 and coloured(marks(root, "line"), SPENDING)


def test_the_budget_is_a_dashed_rule_at_its_height_and_missing_when_there_is_none():
    limited = drawn(epsilon_figure(alike().series()))
    measured = drawn(epsilon_figure(alike(budget=math.inf).series()))
    (rule,) = dashed(limited)
    assert abs(height(rule) - height(text_called(limited, "3.0"))) < 6
    assert "budget ε = 3" in texts(limited)
    assert not dashed(measured)
    assert "Largest privacy loss: ε 4.98, no budget set" in texts(measured)


def test_many_clients_are_a_fan_with_few_lines():
    history = unlike(200, rounds=80, quota=40)
    history = replace(history, settings=history.settings | {"rounds": 80})
    root = drawn(epsilon_figure(history.series()))
    spent = sorted(client.epsilon for client in history.rounds[-1].spent.values())
    early = sum(client.exhausted_in is not None and client.exhausted_in < 80 for client in history.standings.values())
    planned = len(history.rounds[-1].exhausted) - early
    assert 0 < planned < early < 200
    assert len(marks(root, "area")) == 2
    assert len(marks(root, "line")) <= 4
    median = epsilon_text((spent[99] + spent[100]) / 2)
    assert f"{median} median" in labels(root)
    assert labels(root)[-1].startswith(f"{epsilon_text(spent[0])} least: client-")
    assert {f"{early} clients exhausted", f"{planned} clients spent as planned"} <= set(texts(root))
    assert f"; {planned} of 200 clients spent as planned; {early} of 200 clients exhausted" in written(root)
    shapes = "squares: spent as planned, diamonds: exhausted"
    assert f"bands: all clients and their middle half, {shapes}" in written(root)


@pytest.mark.exhaustive
@pytest.mark.parametrize("clients", [12, 200])
def test_a_chosen_client_is_drawn_on_top_in_black_and_named_in_bold(clients):
    history = unlike(clients, rounds=40)
    root = drawn(epsilon_figure(history.series(["client-7"])))
    lines = marks(root, "line")
    (chosen,) = coloured(lines, INK)
    others = coloured(lines, SPENDING)
    assert lines.index(chosen) > max(lines.index(line) for line in others)
    assert float(chosen.get("stroke-width")) > max(float(line.get("stroke-width")) for line in others)
    name = f"{epsilon_text(history.last.spent['client-7'].epsilon)} client-7"
    assert labels(root).count(name) == 1
    bold = [e for e in root.iter(f"{SVG}text") if "client-" in (e.text or "") and e.get("font-weight") == "bold"]
    assert [element.text.replace("\N{EN SPACE}", " ") for element in bold] == [name]
    assert not coloured(marks(drawn(epsilon_figure(history.series())), "line"), INK)


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


@pytest.mark.exhaustive
def test_the_same_run_draws_the_same_bytes(tmp_path):
    for name in ("first.png", "second.png"):
        save_png(run_figure(unlike(12).series()), tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
