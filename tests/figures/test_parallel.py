"""Parallel coordinates: the line of each run goes through its settings to its metric."""

import re

import pytest

from fedprivacy.figures.experiments import experiment_figure, parallel_figure, parallel_rows
from tests.figures.reading import drawn, marks, place, rows, text_called, texts, written

SETTINGS = ["learning-rate", "algorithm", "pull", "privacy"]


def run(name, accuracy, rate, algorithm, pull=None, privacy=True):
    settings = {"learning-rate": rate, "algorithm": algorithm, "pull": pull, "privacy": privacy}
    return {"run": name, "metrics": {"accuracy": accuracy, "loss": accuracy + 1.0}, "settings": settings}


RUNS = [
    run("one", 0.25, 0.01, "fedavg"),
    run("two", 0.75, 0.1, "mr-mtl", 2.0),
    run("three", 0.5, 1.0, "ditto", 1.0, False),
]


def places(chart, axis):
    """Place of each run on an axis, from 0 to 1."""
    return {row["run"]: row["place"] for row in rows(chart, "place", "run") if row["axis"] == axis}


def test_numbers_are_placed_by_size_words_evenly_and_what_is_left_open_below():
    chart = parallel_figure(RUNS, SETTINGS, "accuracy", width=600)
    assert places(chart, "learning rate") == pytest.approx({"one": 0.0, "two": 0.5, "three": 1.0})  # factors of 10
    assert places(chart, "algorithm") == {"one": 0.5, "two": 1.0, "three": 0.0}
    assert places(chart, "privacy") == {"one": 1.0, "two": 1.0, "three": 0.0}
    assert places(chart, "accuracy") == {"one": 0.0, "two": 1.0, "three": 0.5}
    pulls = places(chart, "pull")
    assert (pulls["three"], pulls["two"]) == (0.0, 1.0) and pulls["one"] < 0.0


def test_a_line_for_each_run_goes_through_every_axis_and_the_best_one_is_thick():
    figure = drawn(parallel_figure(RUNS, SETTINGS, "accuracy", width=600))
    lines = marks(figure, "line")
    assert len(lines) == len(RUNS)
    assert all(len(re.findall("[ML]", line.get("d"))) == len(SETTINGS) + 1 for line in lines)
    thick = max(lines, key=lambda line: float(line.get("stroke-width")))
    *_, end = re.findall(r"[\d.]+,([\d.]+)", thick.get("d"))
    assert place(text_called(figure, "75.0 %"))[1] == pytest.approx(float(end), abs=5)  # the middle of its letters
    assert "3 runs: best accuracy 75.0 %, in two" in written(figure)
    assert "best loss 1.25, in one" in written(drawn(parallel_figure(RUNS, SETTINGS, "loss", width=600)))


def test_the_legend_names_words_and_ranges_of_numbers():
    of_words = texts(drawn(experiment_figure(RUNS, "learning-rate", "accuracy", "algorithm")))
    assert {"algorithm", "ditto", "fedavg", "mr-mtl"} <= set(of_words)
    of_numbers = texts(drawn(parallel_figure(RUNS, ["learning-rate"], "accuracy", "loss")))
    assert {"loss", "< 1.33", "1.33 – 1.42", "≥ 1.67"} <= set(of_numbers)  # noqa: RUF001


def test_the_numbers_behind_it_have_a_row_for_each_run_that_measured_the_metric():
    unmeasured = run("four", 0.5, 1.0, "local") | {"metrics": {}}
    found = parallel_rows([*RUNS, unmeasured], SETTINGS, "accuracy")
    assert [row["run"] for row in found] == ["one", "two", "three"]
    assert found[1] == {"run": "two", "learning-rate": 0.1, "algorithm": "mr-mtl", "pull": 2.0, "privacy": "True"} | {
        "accuracy": 0.75
    }
