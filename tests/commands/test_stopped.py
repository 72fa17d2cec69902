"""A simulation that is stopped at any moment, or whose disk is full, says how to go on, and then has the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from fedprivacy._support.durable import append_durably
from fedprivacy.runs.records import report
from fedprivacy.runs.records.folder import read_history, read_lines
from fedprivacy.runs.records.run import open_run
from tests.commands import stopping
from tests.commands.running import ENVIRONMENT, fedprivacy
from tests.runs.rounds import same_results

GO_ON = "To go on after the last finished round: fedprivacy simulate --resume run"


def written(folder):
    """The folder, with the task in it."""
    (folder / "stopping.py").write_text(Path(stopping.__file__).read_text())
    return folder


def options(folder, *more, out="run"):
    """A run of the task in a folder."""
    file = folder / "stopping.py"
    named = ("--task", f"{file}:Coins", "--strategy", f"{file}:Slow", "--out", out)
    return (*named, "--clients", "3", "--seed", "1", *more)


def at(moment, place, run="run"):
    """The environment in which a run is stopped."""
    return {stopping.MOMENT: moment, stopping.HERE: str(place / "here"), stopping.RUN: str(place / run)}


@pytest.fixture
def place(tmp_path):
    """A folder with the task, which no test before has loaded: what it keeps for a process it keeps by its file."""
    return written(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a run that nobody stops."""
    folder = written(tmp_path_factory.mktemp("whole"))
    fedprivacy("simulate", *options(folder), cwd=folder)
    return same_results(folder / "run")


@pytest.mark.parametrize(
    "moment",
    [
        "training:5",
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("enrolling:1", "averaging:2")),
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("recording:1", "recording:3", "training:2")),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_a_run_that_ctrl_c_ends_goes_on_with_the_same_bytes(moment, place, whole):
    with mock.patch.dict(os.environ, at(moment, place)):
        stopped = fedprivacy("simulate", *options(place), cwd=place, code=130)
    assert GO_ON in stopped.stderr and "Traceback" not in stopped.output
    assert len(read_history(place / "run").rounds) < 4 if read_lines(place / "run") else True
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    fedprivacy("simulate", "--resume", "run", cwd=place)
    assert same_results(place / "run") == whole


@pytest.mark.exhaustive
def test_ctrl_c_while_the_report_is_drawn_leaves_a_finished_run(place, whole, monkeypatch):
    with monkeypatch.context() as ending:
        ending.setattr(report.figures, "save_png", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        stopped = fedprivacy("simulate", *options(place), cwd=place, code=130)
    assert GO_ON in stopped.stderr
    assert same_results(place / "run") == whole
    fedprivacy("report", "run", cwd=place)
    assert (place / "run" / "report.html").read_text().startswith("<!doctype html>")


FORKED = """
import os, signal
from fedprivacy.commands.terminal import ends_in_order

with ends_in_order():
    if not (child := os.fork()):
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_just_forked_ends_without_a_word():
    """As when a worker is started: until it has become another program, it has this one's handlers."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert (int(done.stdout), done.stderr) == (signal.SIGINT, "")


IN_A_TERMINAL = [
    ("training:2", signal.SIGTERM),  # as a scheduler ends it
    pytest.param("averaging:2", signal.SIGINT, marks=pytest.mark.soak),
]
"""Moment and signal; every moment is tried above, without a process of its own."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("moment", "number"), IN_A_TERMINAL)
def test_a_run_ends_before_a_standstill_in_a_terminal(moment, number, place, whole):
    """In a process group of its own, as a shell gives one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedprivacy", "simulate", *options(place)],
        cwd=place,
        env=ENVIRONMENT | {stopping.STILL: "yes"} | at(moment, place),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not (place / "here").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    os.killpg(process.pid, number)
    printed, _ = process.communicate(timeout=stopping.STANDSTILL / 2)
    assert (process.returncode, "Traceback" in printed) == (128 + number, False), printed
    assert GO_ON in printed
    fedprivacy("simulate", "--resume", "run", cwd=place)
    assert same_results(place / "run") == whole


def full(place, moment, free):
    """The environment in which a run fills its disk, but for so many bytes."""
    return at(moment, place, "disk/run") | {stopping.FILL: f"{place / 'disk'}:{free}"}


LEDGER = ("--ledger", "sqlite:///ledger.db")  # on another disk


@pytest.mark.exhaustive
@pytest.mark.parametrize("rounds", [0, 1])
def test_a_disk_that_fills_up_between_rounds_stops_the_run_and_it_goes_on_with_room(rounds, disk, place, whole):
    with mock.patch.dict(os.environ, full(place, f"recording:{1 + 2 * rounds}", free=0)):
        failed = fedprivacy("simulate", *options(place, *LEDGER, out="disk/run"), cwd=place, code=2)
    assert "error: 'disk/run' cannot be written: No space left on device. Free space on its disk" in failed.stderr
    assert "fedprivacy simulate --resume disk/run" in failed.stderr and "Traceback" not in failed.output
    assert rounds == 0 or len(read_history(disk / "run").rounds) == rounds
    (disk / "filler").unlink()
    gone_on = fedprivacy("simulate", "--resume", "disk/run", cwd=place)
    assert f"Going on after round {rounds} of 4." in gone_on.stderr
    assert same_results(disk / "run") == whole
    assert not list((disk / "run").glob(".*"))


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(disk):
    append_durably(disk / "lines", b"whole\n")
    stopping.fill(disk, 0)
    with pytest.raises(OSError, match="No space left"):
        append_durably(disk / "lines", bytes(10 * 1024))
    assert (disk / "lines").read_bytes() == b"whole\n"


@pytest.mark.exhaustive
def test_a_run_that_cannot_be_drawn_is_kept_and_drawn_later(disk, place):
    with mock.patch.dict(os.environ, full(place, "recording:5", free=48 * 1024)):
        ran = fedprivacy("simulate", "--json", *options(place, *LEDGER, out="disk/run"), cwd=place, code=1)
    assert json.loads(ran.stdout)["rounds"] == 4
    assert not (disk / "run" / "figure.png").exists() and not (disk / "run" / "report.html").exists()
    assert open_run(disk / "run").model().weight.isfinite().all()
    refused = fedprivacy("report", "disk/run", cwd=place, code=2)
    assert "error: 'disk/run' cannot be written: No space left on device." in refused.stderr
    drawn = fedprivacy("report", "disk/run", "--out", "elsewhere", cwd=place)
    assert "Report: elsewhere/report.html" in drawn.stdout
    assert (place / "elsewhere" / "figure.png").read_bytes().startswith(b"\x89PNG")
