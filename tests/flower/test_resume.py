"""`fedprivacy simulate --resume`, from the command line, after a run was stopped or killed."""

import json
import shutil

import pytest

from fedprivacy.commands.app import app
from fedprivacy.runs.records.folder import read_config, read_lines
from tests.commands.running import unwrapped
from tests.flower.runs import stop_once_in_round_two
from tests.runs.rounds import same_results
from tests.terminal import CliRunner

OPTIONS = ["--rounds", "4", "--clients", "4", "--strategy", "fedadam", "--ema-decay", "0.5", "--clipping", "adaptive"]
OPTIONS += ["--fraction-train", "0.5", "--out", "run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    simulate(*OPTIONS[:-1], folder)
    return folder


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """The folder of the same run, which Ctrl-C has stopped in round 2."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        stop_once_in_round_two(monkeypatch)
        simulate(*OPTIONS[:-1], folder, code=130)
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of it, for one test: a run can be moved."""
    return shutil.copytree(stopped_once, tmp_path / "moved")


def simulate(*options, code=0):
    """The command line in this process."""
    run = CliRunner().invoke(app, ["simulate", *map(str, options)], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert run.exit_code == code, run.output
    return run


@pytest.mark.exhaustive
def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(whole, stopped):
    """Killed at every moment: tests/faults/test_killed_server.py."""
    done = simulate("--resume", stopped, *OPTIONS[:-2])  # its own settings may be repeated
    assert "Going on after round 1 of 4." in done.stderr
    assert "after 4 rounds" in done.stdout and f"{stopped}/report.html" in done.stdout
    assert same_results(stopped) == same_results(whole)
    assert json.loads((stopped / "config.json").read_text())["settings"]["resume"] == ""


@pytest.mark.exhaustive
def test_a_finished_run_is_shown_and_not_run_again(whole, tmp_path):
    finished = shutil.copytree(whole, tmp_path / "finished")
    (finished / "model.safetensors").unlink()  # as if it had been killed before its last line
    ledger = (finished / "ledger.db").read_bytes()
    shown = simulate("--resume", finished)
    assert "All 4 rounds are finished already: nothing is run again." in shown.stderr
    assert "after 4 rounds" in shown.stdout and shown.stdout.count("client-") == 4
    assert same_results(finished) == same_results(whole)
    assert (finished / "ledger.db").read_bytes() == ledger


def test_a_run_goes_on_and_is_planned_with_its_own_settings_and_no_others(stopped):
    planned = CliRunner().invoke(app, ["plan", "--json", "--resume", str(stopped)])
    assert json.loads(planned.stdout)["noise_multiplier"] == read_config(stopped).noise_multiplier
    before = read_lines(stopped)
    refused = simulate("--resume", stopped, "--rounds", "9", "--strategy", "fedadam", "--epsilon", "5", code=2)
    assert refused.stderr.count("error:") == 2
    assert "rounds is 9, but the run goes on with its own, 4; leave rounds open" in refused.stderr
    assert "epsilon is 5.0, but the run goes on with its own, 3.0" in refused.stderr
    refused = simulate("--resume", stopped, "--client-terms", '{"client-0": {"epsilon": 1}}', code=2)
    assert "the run goes on with its own, which were left open" in unwrapped(refused.stderr)
    assert read_lines(stopped) == before


@pytest.mark.exhaustive
def test_what_cannot_go_on_is_said_with_the_remedy(stopped, tmp_path):
    assert "holds no run that could go on" in simulate("--resume", tmp_path / "nothing", code=2).stderr
    for file in stopped.glob("ledger.db*"):
        file.unlink()
    failed = simulate("--resume", stopped, code=2)
    assert failed.stderr.count("error:") == 1
    assert f"To go on after the last finished round: fedprivacy simulate --resume {stopped}\n" in failed.stderr
    (stopped / "checkpoint.safetensors").unlink()
    assert "Start anew in a new folder" in simulate("--resume", stopped, code=2).stderr
