"""Runs of the task of `stopping`, as they are typed, stopped and looked at."""

from pathlib import Path

from tests.commands import stopping
from tests.runs.rounds import same_results


def written(folder):
    """The folder, with the task in it."""
    (folder / "stopping.py").write_text(Path(stopping.__file__).read_text())
    return folder


def options(folder, *more, out="run"):
    """A run of the task in a folder."""
    file = folder / "stopping.py"
    return (
        "--task",
        f"{file}:Coins",
        "--strategy",
        f"{file}:Slow",
        "--clients",
        "3",
        "--seed",
        "1",
        "--out",
        out,
        *more,
    )


def at(moment, place, run="run"):
    """The environment in which a run is stopped."""
    return {stopping.MOMENT: moment, stopping.HERE: str(place / "here"), stopping.RUN: str(place / run)}


def results(folder):
    return same_results(folder)
