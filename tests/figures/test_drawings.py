"""Every figure draws what the run did: its lines, marks and rules are where the numbers say, and so are its words."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from fedprivacy.figures import (
    audit_figure,
    compared_epsilon_figure,
    compared_metric_figure,
    compared_tradeoff_figure,
    cost_figure,
    epsilon_figure,
    limit_figure,
    metric_figure,
    tradeoff_figure,
)
from fedprivacy.figures.experiments import parallel_figure
from fedprivacy.figures.run import bounds_below
from fedprivacy.figures.style import COSTS, EXHAUSTED, GRID, RUNS, SPENDING
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.series import CostMap
from tests.figures.reading import (
    coloured,
    dashed,
    drawn,
    height,
    labels,
    marks,
    place,
    rows,
    text_called,
    texts,
    written,
)
from tests.runs.histories import alike, run_history


def points_of(line):
    """The points of a drawn line, in px."""
    return np.array(re.findall(r"[ML]([-\d.]+),([-\d.]+)", line.get("d")), dtype=float)


def test_exhausted_clients_are_recognised_without_colour_and_an_epsilon_without_a_bound_is_said_and_not_drawn():
    joins = {
        "north": lambda n: True,
        "east": lambda n: n > 10,
        "south": lambda n: n % 2 == 0,
        "west": lambda n: n % 3 == 0,
    }
    history = run_history(joins, rounds=60, quota=40)
    root = drawn(epsilon_figure(history.series()))
    assert "Largest privacy loss: ε 2.99 of budget 3; 2 of 4 clients exhausted" in texts(root)
    assert sorted(labels(root)[:2]) == ["2.99 east exhausted", "2.99 north exhausted"]
    assert labels(root)[2:] == ["2.59 south", "2.12 west"]
    diamonds, dots = (coloured(marks(root, "symbol"), colour) for colour in (EXHAUSTED, SPENDING))
    assert len(diamonds) == 2 and len(dots) == 2
    assert len({element.get("d") for element in diamonds + dots}) == 2
    last = history.rounds[-1]
    spent = last.spent | {"south": replace(last.spent["south"], epsilon=math.inf)}
    unbounded = replace(history, rounds=(*history.rounds[:-1], replace(last, spent=spent)))
    root = drawn(epsilon_figure(unbounded.series()))
    assert "Largest privacy loss: ε ∞ of budget 3; 2 of 4 clients exhausted" in texts(root) and len(labels(root)) == 3


def test_a_metric_that_is_no_accuracy_has_an_axis_of_its_own_and_what_some_rounds_measure_alone_is_joined():
    shown = texts(drawn(metric_figure(alike(metric="mse", value=lambda n: 2.0 + 1 / n).series())))
    assert "After 60 rounds: mse 2.017" in shown
    assert "3.0" in shown and not {text for text in shown if text.endswith("%") and "mse" not in text}
    history = alike(rounds=7)
    rounds = list(history.rounds)
    for n, told in ((3, 0.5), (6, 0.75)):
        rounds[n - 1] = replace(rounds[n - 1], metrics=rounds[n - 1].metrics | {"clients_accuracy": told})
    shown = texts(drawn(metric_figure(replace(history, rounds=tuple(rounds)).series(), "clients_accuracy")))
    assert "After 6 rounds: clients accuracy 75.0 %" in shown
    assert any("on the clients' own records" in text for text in shown)
    never = texts(drawn(metric_figure(history.series(), "clients_accuracy")))
    assert "After 7 rounds: clients accuracy not measured" in never


@pytest.mark.exhaustive
def test_a_cell_is_coloured_if_it_cost_something_grey_if_nothing_and_empty_if_unknown():
    facts = alike(rounds=1).series().facts

    def figure(*growth):
        columns = tuple(range(1, len(growth[0]) + 1))
        return drawn(cost_figure(CostMap(("a", "b")[: len(growth)], columns, columns, np.array(growth)), facts))

    cells = marks(figure([0.3, 0.0, 0.1], [math.nan, 0.2, math.inf]), "rect")
    assert len(coloured(cells, GRID)) == 1 and sum(len(coloured(cells, colour)) for colour in COSTS) == 3
    assert "No client's ε grew" in written(figure([0.0, 0.0]))
    for largest in (1e-9, 0.03, 0.9999, 1.0, 7.3, 2e4):
        bounds = bounds_below(largest)
        assert len(bounds) == 5 and bounds == sorted(bounds) and bounds[-1] < largest <= 2.5 * bounds[-1] * (1 + 1e-9)
        assert all(float(f"{bound:.1g}") == pytest.approx(bound, rel=1e-12) for bound in bounds)


@pytest.mark.exhaustive
def test_the_trade_off_goes_through_every_round_and_budgets_are_upright_rules_of_many_the_least_and_the_largest():
    history = alike(rounds=30, value=lambda n: 0.5 + 0.4 * (-1) ** n)
    root = drawn(tradeoff_figure(history.series(), width=440))
    (line,), (rule,) = marks(root, "line"), dashed(root)
    spent = np.array([[record.max_epsilon / 3, 1.1 - record.metrics["accuracy"]] for record in history.rounds])
    assert points_of(line) == pytest.approx(spent / 1.1 * [440, 330], abs=0.01)
    assert len(coloured(marks(root, "symbol"), SPENDING)) == 30
    assert place(rule)[0] == pytest.approx(440 / 1.1, abs=1) and "budget ε = 3" in texts(root)
    many = drawn(tradeoff_figure(replace(history.series(), budgets=(1.0, 2.0, 3.0, 4.0))))
    assert len(dashed(many)) == 2
    assert {"least of 4 budgets, ε = 1", "largest of 4 budgets, ε = 4"} <= set(texts(many))
    assert not dashed(drawn(tradeoff_figure(alike(budget=math.inf).series())))
    for said, dots, given in (
        ("a number", 2, {"value": lambda n: math.inf if n == 3 else 0.5}),
        ("measured", 0, {"metric": None}),
    ):
        root = drawn(tradeoff_figure(alike(rounds=3, **given).series()))
        assert f"After 3 rounds: accuracy not {said} for ε 0.67" in written(root) and len(marks(root, "symbol")) == dots


@pytest.mark.exhaustive
def test_a_limit_is_a_curve_with_marked_points_beside_a_thinner_one_and_guessing():
    rates = np.geomspace(1e-3, 1.0, 31)
    marked = [(0.01, 0.1, "10 %"), (0.1, 0.316, "31.6 %")]
    root = drawn(limit_figure(rates, np.sqrt(rates), "title", ["about"], alone=rates**0.25, marked=marked, width=300))
    guess, alone, limit = marks(root, "line")
    assert points_of(limit)[0] == pytest.approx([0.0, 150.0], abs=0.01)
    assert points_of(alone)[0][1] == pytest.approx(75.0, abs=0.01)
    assert points_of(guess) == pytest.approx(np.array([[0.0, 300.0], [300.0, 0.0]]), abs=0.01)
    assert float(alone.get("stroke-width")) < float(limit.get("stroke-width")) and limit.get("stroke") == SPENDING
    assert {"10 %", "31.6 %", "accused wrongly", "found, at most"} <= set(texts(root))
    assert len(marks(root, "symbol")) == 2
    assert "thin: what ε and δ alone would allow, dotted: guessing" in written(root)
    assert "alone" not in written(drawn(limit_figure(rates, np.sqrt(rates), "title", ["about"])))


def test_an_audit_shows_both_bounds_rounded_to_the_safe_side_and_a_violation_cannot_be_overlooked():
    sound = AuditResult(1.7e9, "canaries", "client-3", 1.2999, 0.95, 2.9912, 1e-4, "PLD", "server")
    root = drawn(audit_figure([sound], "run digits", 440))
    assert "1 audit: none proved more than is stated" in texts(root)
    assert {"consistent: canaries, client-3", "≥ 1.29", "≤ 3.00"} <= set(texts(root))
    assert "95 % confidence, δ = 1e-4, PLD, seen by the server" in texts(root) and "run digits" in written(root)
    (disc,) = marks(root, "symbol")
    assert place(disc)[0] == pytest.approx(60 + 320 * 1.2999 / 2.9912, abs=0.1)
    root = drawn(audit_figure([sound, replace(sound, lower=4.519, at=1.6e9)], "run digits"))
    assert "VIOLATED: 1 of 2 audits proved more than is stated" in texts(root)
    violated, consistent = (text_called(root, f"{word}: canaries, client-3") for word in ("VIOLATED", "consistent"))
    assert height(violated) < height(consistent) and violated.get("fill") == EXHAUSTED
    (broken,), (whole,) = (coloured(marks(root, "symbol"), colour) for colour in (EXHAUSTED, SPENDING))
    assert broken.get("d") != whole.get("d")


def test_parallel_coordinates_place_numbers_by_size_words_evenly_and_what_is_left_open_below():
    settings = [
        {"learning-rate": 0.01, "algorithm": "fedavg", "pull": None, "privacy": True},
        {"learning-rate": 0.1, "algorithm": "mr-mtl", "pull": 2.0, "privacy": True},
        {"learning-rate": 1.0, "algorithm": "ditto", "pull": 1.0, "privacy": False},
    ]
    runs = [
        {"run": str(number), "metrics": {"accuracy": accuracy}, "settings": each}
        for number, accuracy, each in zip(range(3), (0.25, 0.75, 0.5), settings, strict=True)
    ]
    found = rows(parallel_figure(runs, list(settings[0]), "accuracy", width=600), "place", "run")

    def places(axis):
        """Place of each run on an axis, from 0 to 1."""
        placed = {row["run"]: row["place"] for row in found if row["axis"] == axis}
        return [placed[run["run"]] for run in runs]

    assert places("learning rate") == pytest.approx([0.0, 0.5, 1.0])  # factors of 10
    assert places("algorithm") == [0.5, 1.0, 0.0] and places("accuracy") == [0.0, 1.0, 0.5]
    assert places("privacy") == [1.0, 1.0, 0.0]
    left_open, *pulls = places("pull")
    assert pulls == [1.0, 0.0] and left_open < 0.0


COMPARED = [compared_metric_figure, compared_epsilon_figure, compared_tradeoff_figure]


def run(name, rounds=20, **options):
    return alike(rounds=rounds, out=f"runs/{name}", **options).series()


@pytest.mark.exhaustive
@pytest.mark.parametrize("figure", COMPARED, ids=lambda figure: figure.__name__)
def test_runs_that_cannot_be_compared_are_left_out_and_named_and_too_few_or_too_many_are_refused(figure):
    root = drawn(figure([run("a"), run("waiting", rounds=0), run("b", 10)]))
    assert "left out: waiting (no finished round)" in written(root)
    assert coloured(marks(root, "line"), RUNS[2]) and not coloured(marks(root, "line"), RUNS[1])  # each keeps its own
    if figure is not compared_epsilon_figure:
        root = drawn(figure([run("a"), run("other", metric="auc"), run("b", 10)]))
        assert "left out: other (no accuracy)" in written(root) and len(marks(root, "line")) == 2
    for number in (1, 9):
        with pytest.raises(ValueError, match=rf"{number} runs cannot be compared; choose 2 to 8"):
            figure([run(f"run-{n}") for n in range(number)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("figure", COMPARED[1:], ids=lambda figure: figure.__name__)
def test_what_makes_epsilons_incomparable_is_said(figure):
    other = run("b", delta=1e-6)
    other = replace(other, facts=replace(other.facts, relation="add-remove", unit="patient"))
    root = drawn(figure([run("a"), other], width=900))
    assert "δ = 1e-6 and 1e-4," in written(root)
    assert "neighbouring relations differ: add-remove, zero-out" in written(root)
    assert "units differ: patient, record" in written(root)
    assert [label.split(", ")[-1] for label in sorted(labels(root))] == ["δ = 1e-4", "δ = 1e-6"]
