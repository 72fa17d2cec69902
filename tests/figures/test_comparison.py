"""Runs side by side are told apart, named, and compared only where they can be."""

from dataclasses import replace

import pytest

from fedprivacy.figures import compared_epsilon_figure, compared_metric_figure, compared_tradeoff_figure
from fedprivacy.figures.style import RUNS
from tests.figures.reading import coloured, drawn, labels, marks, written
from tests.runs.histories import alike

pytestmark = pytest.mark.exhaustive

FIGURES = [compared_metric_figure, compared_epsilon_figure, compared_tradeoff_figure]
every_figure = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)


def run(name, rounds=20, delta=1e-4, **options):
    return alike(rounds=rounds, out=f"runs/{name}", delta=delta, **options).series()


def runs(number):
    return [run(f"run-{n}", 20 + n, value=lambda r, n=n: r / (r + 10 + n)) for n in range(1, number + 1)]


@every_figure
def test_a_run_without_a_finished_round_is_left_out_and_named(figure):
    root = drawn(figure([run("a"), run("waiting", rounds=0), run("b", 10)]))
    assert "left out: waiting (no finished round)" in written(root)
    assert len(marks(root, "line")) == 2
    assert not any("waiting" in label for label in labels(root))
    assert coloured(marks(root, "line"), RUNS[2]) and not coloured(marks(root, "line"), RUNS[1])  # each keeps its own


@pytest.mark.parametrize("figure", [compared_metric_figure, compared_tradeoff_figure], ids=lambda f: f.__name__)
def test_a_run_that_did_not_measure_the_first_run_s_metric_is_left_out_and_named(figure):
    root = drawn(figure([run("a"), run("other", metric="auc"), run("b", 10)]))
    assert "left out: other (no accuracy)" in written(root)
    assert len(marks(root, "line")) == 2


@pytest.mark.parametrize("figure", FIGURES[1:], ids=lambda figure: figure.__name__)
def test_what_makes_epsilons_incomparable_is_said(figure):
    unlike_first = run("b", delta=1e-6)
    unlike_first = replace(unlike_first, facts=replace(unlike_first.facts, relation="add-remove", unit="patient"))
    root = drawn(figure([run("a"), unlike_first], width=900))
    assert "δ = 1e-6 and 1e-4," in written(root)
    assert "neighbouring relations differ: add-remove, zero-out" in written(root)
    assert "units differ: patient, record" in written(root)
    assert {label.partition(" a, ")[2] or label.partition(" b, ")[2] for label in labels(root)} == {
        "δ = 1e-4",
        "δ = 1e-6",
    }


@every_figure
def test_too_few_or_too_many_runs_are_refused(figure):
    for number in (1, 9):
        with pytest.raises(ValueError, match=rf"{number} runs cannot be compared; choose 2 to 8"):
            figure(runs(number))
