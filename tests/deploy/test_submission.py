"""`fedprivacy deploy run`: nothing starts with wrong settings, and a run that failed is no success."""

import json
import tomllib
from contextlib import closing

import pytest

import fedprivacy as fp
from fedprivacy.commands.deploy import deploy_app
from fedprivacy.deploy import submission
from fedprivacy.deploy.app_folder import write_app
from fedprivacy.deploy.federation import DeploymentError, write_toml
from fedprivacy.deploy.submission import Operator, Submission
from fedprivacy.runs.records.store import RecordDatabase, url_in
from tests.deploy.written_hosts import OWN
from tests.runs.rounds import falsify, rounds_of
from tests.terminal import CliRunner

UNLIMITED = '{"a": {"epsilon": Infinity}}'
SETTINGS = {"clients": 3, "rounds": 2, "epsilon": 3.0, "delta": 1e-3}


@pytest.fixture
def app(tmp_path):
    """An app that brings its task, beside the settings of a run."""
    write_toml(tmp_path / "run.toml", {"": SETTINGS})
    return write_app(tmp_path / "sides", f"{OWN}:Sides").folder


@pytest.fixture
def no_flwr(monkeypatch):
    def program(name):
        raise AssertionError(f"{name} was started")

    monkeypatch.setattr(submission, "program", program)


def test_a_run_gets_a_folder_of_its_own_beside_its_settings(app, tmp_path):
    first = Submission.of(app, tmp_path / "run.toml")
    assert first.settings == SETTINGS | {"out": str(tmp_path / "runs" / "sides-1")}
    first.out.mkdir(parents=True)
    assert Submission.of(app, tmp_path / "run.toml").out == tmp_path / "runs" / "sides-2"
    # A path begins at the settings' file and not where the server works.
    write_toml(tmp_path / "run.toml", {"": SETTINGS | {"out": "here"}})
    assert Submission.of(app, tmp_path / "run.toml").settings["out"] == str(tmp_path / "here")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": -1.0}, "epsilon is -1"),
        ({"epsilon": float("inf"), "noise-multiplier": 1.0}, "in a deployment give a finite one"),
        ({"client-terms": UNLIMITED, "noise-multiplier": 2.0}, "client-terms gives a epsilon inf; in a deployment"),
        ({"task": "sides_app.nothing:Sides"}, "cannot be imported"),
        ({"out": "taken"}, "already holds a run"),
        ({"resume": "taken"}, "holds no run that could go on"),
    ],
)
@pytest.mark.usefixtures("no_flwr")
def test_wrong_settings_start_nothing(app, tmp_path, settings, words):
    with closing(RecordDatabase(url_in(tmp_path / "taken"))) as taken:
        for number in range(2):
            taken.put_line("run-1", number, "{}")
    given = settings if "resume" in settings else SETTINGS | settings
    write_toml(tmp_path / "run.toml", {"": given})
    done = CliRunner().invoke(deploy_app, ["run", str(app), "--run-config", str(tmp_path / "run.toml")])
    assert done.exit_code == 2
    assert words in done.output


def run_of(app, tmp_path):
    return CliRunner().invoke(deploy_app, ["run", str(app), "--run-config", str(tmp_path / "run.toml")])


def trained(submitted):
    """A run of the same settings, on this machine."""
    settings = {key.replace("-", "_"): value for key, value in submitted.settings.items() if key != "task"}
    fp.simulate(f"{OWN}:Sides", progress=False, **settings | {"ledger": ""})
    return submitted.out


def test_a_run_that_trained_is_completed_and_one_in_which_nobody_did_is_not(app, tmp_path, monkeypatch):
    monkeypatch.setattr(Operator, "run", lambda self, submitted, show: trained(submitted))
    done = run_of(app, tmp_path)
    assert done.exit_code == 0 and "Completed: 2 rounds, accuracy" in done.output

    def idle(self, submitted, show):
        rounds = rounds_of(trained(submitted))
        refusals = {f"client-{number}": "The budget is spent" for number in range(5)}
        changed = [record | {"participants": [], "failures": refusals} for record in rounds]
        falsify(submitted.out, changed)

    monkeypatch.setattr(Operator, "run", idle)
    done = run_of(app, tmp_path)
    assert done.exit_code == 1
    assert "Nobody trained" in done.output and "client-0: The budget is spent" in done.output
    assert "and 2 clients more" in done.output and "Completed" not in done.output


@pytest.mark.parametrize(
    ("failures", "code"), [({}, 0), ({"b": "TABLE_REFUSED"}, 1)], ids=["all answer", "one does not"]
)
def test_a_question_run_tells_where_its_answers_are(app, tmp_path, monkeypatch, failures, code):
    write_toml(tmp_path / "run.toml", {"": SETTINGS | {"questions": "count"}})

    def asked(self, submitted, show):
        submitted.out.mkdir(parents=True)
        (submitted.out / "answers.json").write_text(json.dumps({"federation": [], "failures": failures}))

    monkeypatch.setattr(Operator, "run", asked)
    done = run_of(app, tmp_path)
    assert done.exit_code == code
    assert "Completed: the questions are answered; answers in " in done.output and "answers.json" in done.output
    assert all(f"{client} did not answer: {reason}" in done.output for client, reason in failures.items())


STARTED = {"success": True, "run-id": "7"}


def flwr_that_answers(tmp_path, monkeypatch, started, *status, log=("INFO: round 1",)):
    """A program with Flower's answers, the last for ever; like Flower's, it ends with 0 whatever became of the run."""
    runs = [{"success": True, "runs": [{"run-id": "7", "status": one, "status-details": "N/A"}]} for one in status]
    answers = {"run": [json.dumps(started)], "log": log, "ls": [json.dumps(listed) for listed in runs]}
    for name, given in answers.items():
        for number, answer in enumerate(given):
            (tmp_path / f"{name}.answer{number}").write_text(f"{answer}\n")
    fake = tmp_path / "flwr"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = run ] && cp "$5" {tmp_path}/given.toml\nset -- {tmp_path}/"$1".answer*\n'
        'cat "$1"\n[ $# = 1 ] || rm "$1"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(submission, "program", lambda _: fake)
    monkeypatch.setattr(submission, "PATIENCE", 0.0)
    monkeypatch.setattr(submission, "POLL", 0.01)


@pytest.fixture
def given(app, tmp_path):
    return Submission.of(app, tmp_path / "run.toml")


@pytest.mark.parametrize(
    "logged",
    [
        "2026-11-27T04:55:25.420Z INFO [flwr] Round 1: accuracy 0.275 (run=8d1f, round=1)",
        '{"time": "2026-11-27T04:55:25.420Z", "level": "INFO", "logger": "flwr", '
        '"message": "Round 1: accuracy 0.275", "run": "8d1f", "round": 1}',
    ],
    ids=["text", "json"],
)
def test_a_run_that_completed_was_shown_in_any_form_of_its_log_and_got_its_settings(
    given, tmp_path, monkeypatch, logged
):
    log = [f"\x1b[92mINFO \x1b[0m:  Start\n{logged}"]
    flwr_that_answers(tmp_path, monkeypatch, STARTED, "finished:completed", log=log)
    shown = []
    Operator("deployment").run(given, shown.append)
    assert shown[0].endswith("Z INFO [flwr] Start")
    assert shown[1:] == ["2026-11-27T04:55:25.420Z INFO [flwr] Round 1: accuracy 0.275 (run=8d1f, round=1)"]
    assert tomllib.loads((tmp_path / "given.toml").read_text()) == given.settings


@pytest.mark.parametrize(
    ("started", "status", "words"),
    [
        (STARTED, "finished:failed", "ended as finished:failed: some.TooFewClientsError: 1 of 3 clients came"),
        (STARTED, "finished:stopped", "ended as finished:stopped"),
        (STARTED, "running", "'flwr stop 7 deployment' ends it"),
        ({"success": False, "error-message": "no SuperLink"}, "", "flwr run: no SuperLink"),
    ],
)
def test_a_run_that_did_not_says_why(given, tmp_path, monkeypatch, started, status, words):
    log = "INFO: round 1\nsome.TooFewClientsError: 1 of 3 clients came\nINFO: end"
    flwr_that_answers(tmp_path, monkeypatch, started, status, log=[log])
    with pytest.raises(DeploymentError, match=words):
        Operator("deployment").run(given, lambda _: None)


def test_a_run_that_nobody_starts_says_so_and_is_waited_for(given, tmp_path, monkeypatch):
    flwr_that_answers(tmp_path, monkeypatch, STARTED, "pending", "pending", "pending", "running", "finished:completed")
    monkeypatch.setattr(submission, "START", 0.0)
    monkeypatch.setattr(submission, "PATIENCE", 60.0)
    shown = []
    Operator("deployment").run(given, shown.append)
    assert "still waits for the SuperExec" in shown[0] and "systemctl status fedprivacy-superexec" in shown[0]
    assert [line.partition("Z ")[2] for line in shown[1:]] == ["INFO [uvicorn.error] round 1"]


def test_a_log_that_breaks_off_is_taken_up_again_where_it_was(given, tmp_path, monkeypatch):
    log = ["INFO: round 1\nError: HTTP 500", "INFO: round 1\nINFO: round 2\nINFO: end"]
    flwr_that_answers(tmp_path, monkeypatch, STARTED, "running", "running", "finished:completed", log=log)
    monkeypatch.setattr(submission, "PATIENCE", 60.0)
    shown = []
    Operator("deployment").run(given, shown.append)
    events = [line.partition(" [")[2] for line in shown]
    own = [f"uvicorn.error] {words}" for words in ("round 1", "round 2", "end")]
    assert events == [own[0], "output] Error: HTTP 500", *own[1:]]


@pytest.mark.parametrize("listed", ["finished:failed", None], ids=["the app died", "the SuperLink died"])
def test_a_run_whose_server_died_is_told_how_it_goes_on(given, tmp_path, monkeypatch, listed):
    flwr_that_answers(tmp_path, monkeypatch, STARTED, listed)
    if listed is None:
        (tmp_path / "ls.answer0").write_text("Connection to the SuperLink is unavailable.\n")
    with pytest.raises(DeploymentError, match=r"No checkpoint is in .*sides-1, so it cannot be resumed: start it anew"):
        Operator("deployment").run(given, lambda _: None)
    trained(given)
    with pytest.raises(DeploymentError) as died:
        Operator("deployment").run(given, lambda _: None)
    line = f'resume = "{given.out}"'
    assert line in str(died.value) and f"'fedprivacy deploy run {given.app}'" in str(died.value)


def test_whoever_stops_watching_is_told_that_the_run_goes_on(given, tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    flwr_that_answers(tmp_path, monkeypatch, STARTED, "running")
    with pytest.raises(DeploymentError, match=r"Run 7 goes on.*'flwr stop 7 deployment' ends it"):
        Operator("deployment").run(given, interrupted)


def test_what_is_no_answer_is_shown(given, tmp_path, monkeypatch):
    flwr_that_answers(tmp_path, monkeypatch, STARTED, "")
    (tmp_path / "run.answer0").write_text("Segmentation fault\n")
    with pytest.raises(DeploymentError, match="Segmentation fault"):
        Operator("deployment").run(given, lambda _: None)
