"""Ctrl-C and SIGTERM at every moment of a simulation: it ends soon, says how to go on, and then has the same bytes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedprivacy as fp
from fedprivacy.runs import report
from fedprivacy.runs.folder import read_history
from tests.commands import stopping
from tests.commands.running import ENVIRONMENT, fedprivacy, started

RESULTS = ("start.json", "rounds.jsonl", "model.safetensors")
GO_ON = "To go on after the last finished round: fedprivacy simulate --resume run"


@pytest.fixture
def place(tmp_path):
    """A folder with the task, which no test before has loaded: what it keeps for a process it keeps by its file."""
    (tmp_path / "stopping.py").write_text(Path(stopping.__file__).read_text())
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run leaves that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "stopping.py").write_text(Path(stopping.__file__).read_text())
    fedprivacy("simulate", *options(folder), cwd=folder)
    return results(folder / "run")


def options(folder, *more):
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
        "run",
        *more,
    )


def results(folder):
    return {name: (folder / name).read_bytes() for name in RESULTS}


def at(moment, place):
    return {stopping.MOMENT: moment, stopping.HERE: str(place / "here"), stopping.RUN: str(place / "run")}


MOMENTS = ("enrolling:1", "recording:1", "training:2", "training:5", "averaging:2", "recording:3")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_ctrl_c_ends_goes_on_with_the_same_bytes(moment, place, whole, monkeypatch):
    with monkeypatch.context() as ending:
        for name, value in at(moment, place).items():
            ending.setenv(name, value)
        stopped = fedprivacy("simulate", *options(place), cwd=place, code=130)
    assert GO_ON in stopped.stderr and "Traceback" not in stopped.output
    assert len(read_history(place / "run").rounds) < 4 if (place / "run" / "start.json").exists() else True
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    fedprivacy("simulate", "--resume", "run", cwd=place)
    assert results(place / "run") == whole


def test_ctrl_c_while_the_report_is_drawn_leaves_a_finished_run(place, whole, monkeypatch):
    with monkeypatch.context() as ending:
        ending.setattr(report.figures, "save_png", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        stopped = fedprivacy("simulate", *options(place), cwd=place, code=130)
    assert GO_ON in stopped.stderr
    assert results(place / "run") == whole
    fedprivacy("report", "run", cwd=place)
    assert (place / "run" / "report.html").read_text().startswith("<!doctype html>")


def test_in_a_script_the_interrupt_reaches_the_caller_when_the_folder_is_in_order(place, whole, monkeypatch):
    monkeypatch.chdir(place)
    task = stopping.Coins()
    with monkeypatch.context() as ending:
        for name, value in at("recording:3", place).items():
            ending.setenv(name, value)
        with pytest.raises(KeyboardInterrupt) as stopped:
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
    """As when Ray is started: until it has become another program, it has this one's handlers."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert (int(done.stdout), done.stderr) == (signal.SIGINT, "")


IN_A_TERMINAL = [
    ("in-process", "recording:1", "in-process"),
    ("ray", "enrolling:1", "in-process"),
    ("ray", "training:5", "ray"),
    ("ray", "averaging:2", "in-process"),
]
"""Engine, moment, and the engine that goes on: the bytes are the same whichever it is. Ray starts, works or waits for
the server; in the in-process engine every moment is tried above, without a process of its own."""


def ended(place, *command, number, when):
    """A command in a process group of its own, as in a terminal, which gets a signal when `when` says so."""
    variables = ENVIRONMENT | {stopping.STILL: "yes"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedprivacy", *command],
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not when():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    os.killpg(process.pid, number)
    began = time.monotonic()
    printed, _ = process.communicate(timeout=50)
    return process.returncode, printed, time.monotonic() - began


@pytest.mark.exhaustive
@pytest.mark.parametrize(("engine", "moment", "going_on"), IN_A_TERMINAL)
def test_both_engines_end_in_seconds_in_a_terminal(engine, moment, going_on, place, whole, monkeypatch):
    for name, value in at(moment, place).items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    command = ("simulate", *options(place, "--engine", engine, "--node-timeout", "600"))
    code, printed, seconds = ended(place, *command, number=signal.SIGINT, when=(place / "here").exists)
    assert (code, "Traceback" in printed) == (130, False), printed
    assert GO_ON + " --engine ray" * (engine == "ray") in printed
    assert seconds < 30  # far less than it would stand still; on a machine that has nothing else to do, 5
    go_on = started if going_on == "ray" else fedprivacy  # Ray in a process of its own, which ends it
    go_on("simulate", "--resume", "run", "--engine", going_on, "--node-timeout", "600", cwd=place)
    assert results(place / "run") == whole


@pytest.mark.exhaustive
def test_ray_ends_while_the_report_is_drawn(place, whole):
    model = place / "run" / "model.safetensors"
    command = ("simulate", *options(place, "--engine", "ray", "--node-timeout", "600"))
    code, printed, _ = ended(place, *command, number=signal.SIGINT, when=model.exists)
    assert (code, "Traceback" in printed, GO_ON in printed) == (130, False, True), printed
    fedprivacy("simulate", "--resume", "run", cwd=place)
    assert results(place / "run") == whole
    assert (place / "run" / "report.html").exists()


@pytest.mark.exhaustive
def test_a_scheduler_s_sigterm_ends_a_run_in_the_same_way(place, whole, monkeypatch):
    for name, value in at("training:2", place).items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    command = ("simulate", *options(place))
    code, printed, _ = ended(place, *command, number=signal.SIGTERM, when=(place / "here").exists)
    assert (code, GO_ON in printed) == (128 + signal.SIGTERM, True), printed
    fedprivacy("simulate", "--resume", "run", cwd=place)
    assert results(place / "run") == whole
