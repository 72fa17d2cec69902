"""`fedprivacy runs`: runs are found by their tags and settings, sorted by what they measured, explained and removed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import fedprivacy as fp
from tests.commands.running import fedprivacy, unwrapped
from tests.flower.blobs import Blobs

SETTINGS = {"clients": 3, "rounds": 2, "seed": 1, "progress": False}


@pytest.fixture
def home(tmp_path, undrawn, monkeypatch):
    """A folder with three runs of different rates; one shares a ledger with nobody, two with one another."""
    monkeypatch.chdir(tmp_path)
    fp.simulate(Blobs(), learning_rate=0.5, epsilon=3, name="good", tags="pilot, ward", note="the first", **SETTINGS)
    shared = {"noise_multiplier": 3.0, "epsilon": 8, "ledger": "shared.db"}
    fp.simulate(Blobs(), learning_rate=1e-9, tags="pilot", **shared, **SETTINGS)
    fp.simulate(Blobs(), learning_rate=0.5, **shared, **SETTINGS)
    return tmp_path


def listed(home, *options):
    return json.loads(fedprivacy("runs", "--json", *options, cwd=home).stdout)["runs"]


def charged(ledger):
    with closing(sqlite3.connect(ledger)) as connection:
        return connection.execute("SELECT * FROM charges").fetchall()


@pytest.mark.exhaustive
def test_runs_are_filtered_and_sorted_by_what_they_were_given_and_what_they_measured(home):
    assert sorted(Path("runs").iterdir()) == [Path("runs/blobs-1"), Path("runs/blobs-2"), Path("runs/good-1")]
    newest = listed(home)
    assert [row["folder"] for row in newest] == ["runs/blobs-2", "runs/blobs-1", "runs/good-1"]
    good = newest[-1]
    assert (good["tags"], good["note"], good["status"]) == (["pilot", "ward"], "the first", "finished")
    assert good["metrics"] == fp.open_run("runs/good-1").metrics
    assert [row["run"] for row in listed(home, "--tag", "pilot")] == ["blobs-1", "good-1"]
    assert [row["run"] for row in listed(home, "--tag", "ward", "--task", "Blobs")] == ["good-1"]
    both = ("--setting", "epsilon=8", "--setting", "learning-rate=.5")
    assert [row["run"] for row in listed(home, *both)] == ["blobs-2"]
    assert listed(home, "--status", "failed") == listed(home, "--task", "digits") == []
    best = listed(home, "--sort", "accuracy")
    reached = [row["metrics"]["accuracy"] for row in best]
    assert reached == sorted(reached, reverse=True) and reached[-1] < reached[0] and best[-1]["run"] == "blobs-1"
    spent = [row["epsilon"] for row in listed(home, "--sort", "epsilon")]
    assert spent == sorted(spent, reverse=True) and len(set(spent)) == 3
    printed = fedprivacy("runs", "--sort", "learning-rate", "--most", "2", cwd=home, columns=80).output
    assert "1 more: --most 3" in printed and max(map(len, printed.splitlines())) <= 80


@pytest.mark.exhaustive
def test_the_last_error_is_shown_with_its_place_and_forgotten_by_a_run_that_goes_on(home):
    class Failing(fp.Callback):
        def after_round(self, result):
            if result.round == 1:
                raise ZeroDivisionError("the scale is zero")

    assert "no run in 'runs' has failed" in unwrapped(fedprivacy("runs", "error", cwd=home, code=2).output)
    with pytest.raises(Exception, match="the scale is zero"):
        fp.simulate(Blobs(), name="bad", callbacks=[Failing()], **SETTINGS)
    printed = fedprivacy("runs", "error", cwd=home).output
    assert printed.startswith("runs/bad-1\n") and "ZeroDivisionError: the scale is zero" in printed
    assert "after_round" in printed and "test_runs.py" in printed
    assert [row["run"] for row in listed(home, "--status", "failed")] == ["bad-1"]
    fp.simulate(Blobs(), resume="runs/bad-1", progress=False)
    assert "has failed" in unwrapped(fedprivacy("runs", "error", "runs/bad-1", cwd=home, code=2).output)


@pytest.mark.exhaustive
def test_removing_a_run_takes_its_folder_and_no_charge_of_another(home):
    before = charged("shared.db")
    assert before
    assert "Aborted" in fedprivacy("runs", "remove", "runs/blobs-1", cwd=home, code=1).output
    assert Path("runs/blobs-1").is_dir()
    refused = unwrapped(fedprivacy("runs", "remove", "runs/good-1", "runs/bad-1", "--yes", cwd=home, code=2).output)
    assert "'runs/bad-1' holds no run" in refused and Path("runs/good-1").is_dir()  # nothing is removed then
    fedprivacy("runs", "remove", "runs/blobs-1", "runs/good-1", "--yes", cwd=home)
    assert [path.name for path in Path("runs").iterdir()] == ["blobs-2"]
    assert charged("shared.db") == before
    shared = {"noise_multiplier": 3.0, "epsilon": 8}
    fp.simulate(Blobs(), name="owner", **shared, **SETTINGS)
    fp.simulate(Blobs(), name="guest", ledger="runs/owner-1/ledger.db", **shared, **SETTINGS)
    refused = unwrapped(fedprivacy("runs", "remove", "runs/owner-1", "--yes", cwd=home, code=2).output)
    assert "holds the ledger of 1 other run, whose charges must not be lost" in refused
    assert Path("runs/owner-1/ledger.db").exists()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: fp.list_runs(settings=["epsilon=1"]), r"settings is \['epsilon=1'\]; give values by key"),
        (lambda: fp.list_runs(settings={"epsilon": [1]}), r"epsilon is '\[1\]'; give a number"),
        (lambda: fp.list_runs(tag=["pilot"]), r"tag is \['pilot'\]; give a text"),
        (lambda: fp.list_runs(["runs"]), r"sources has \['runs'\]; give a folder of runs, or a ledger"),
        (lambda: fp.open_run(None), "folder is None; give the path of a folder that a run wrote to"),
        (lambda: fp.compare("runs/a", 3), "'runs/a' holds no run"),
        (lambda: fp.compare(["runs/a", "runs/b"]), "1 run cannot be compared; name 2 to 8 folders"),
    ],
    ids=range(7),
)
def test_what_python_cannot_list_or_open_is_named(call, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=told):
        call()
