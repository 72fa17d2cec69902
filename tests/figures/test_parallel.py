"""Parallel coordinates: the line of each run goes through its settings to its metric."""

import pytest

from fedprivacy.figures.experiments import parallel_figure
from tests.figures.reading import rows

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
