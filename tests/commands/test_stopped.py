"""Ctrl-C and SIGTERM at every moment of a simulation: it ends soon, says how to go on, and then has the same bytes."""

import os
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest

import fedprivacy as fp
from fedprivacy.runs.records import report
from fedprivacy.runs.records.folder import read_history, read_lines
from tests.commands import stopping
from tests.commands.running import ENVIRONMENT, fedprivacy
from tests.commands.stopped import at, options, results

GO_ON = "To go on after the last finished round: fedprivacy simulate --resume run"


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
    assert results(place / "run") == whole


@pytest.mark.exhaustive
def test_ctrl_c_while_the_report_is_drawn_leaves_a_finished_run(place, whole, monkeypatch):
    with monkeypatch.context() as ending:
        ending.setattr(report.figures, "save_png", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        stopped = fedprivacy("simulate", *options(place), cwd=place, code=130)
    assert GO_ON in stopped.stderr
    assert results(place / "run") == whole
    fedprivacy("report", "run", cwd=place)
    assert (place / "run" / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_in_a_script_the_interrupt_reaches_the_caller_when_the_folder_is_in_order(place, monkeypatch):
    monkeypatch.chdir(place)
    task = stopping.Coins()
    with mock.patch.dict(os.environ, at("recording:3", place)), pytest.raises(KeyboardInterrupt) as stopped:
        fp.simulate(task, clients=3, seed=1, out="run", progress=False)
    assert stopped.value.__notes__ == ["To go on after the last finished round: fp.simulate(Coins(), resume='run')"]
    run = fp.open_run("run", task)
    assert len(run.rounds) == 1 and run.model() is not None
    assert len(fp.simulate(task, resume="run", progress=False).rounds) == 4


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
    assert results(place / "run") == whole
