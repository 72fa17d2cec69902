"""Runs that are kept are found, sorted, explained, removed and compared, and their files repeat them."""

import html
import json
import re
import shutil
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

import fedprivacy as fp
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.runs.settings.run_file import as_toml, settings_in
from tests.commands.running import fedprivacy, unwrapped
from tests.flower.blobs import Blobs
from tests.runs.rounds import rounds_of, same_results

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


GIVEN = ("--task", "cancer", "--clients", "3", "--rounds", "2", "--batch-size", "20", "--speeds", "lognormal:1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where a run by options is in the folder `run`."""
    place = tmp_path_factory.mktemp("typed")
    fedprivacy("simulate", *GIVEN, "--out", "run", cwd=place)
    return place


@pytest.mark.exhaustive
def test_an_option_wins_over_the_file(place):
    plan = fedprivacy("plan", "--config", "run/run.toml", "--rounds", "3", "--json", cwd=place).stdout
    assert plan == fedprivacy("plan", *GIVEN, "--rounds", "3", "--json", cwd=place).stdout
    assert plan != fedprivacy("plan", *GIVEN, "--json", cwd=place).stdout


@pytest.mark.exhaustive
def test_an_audit_and_questions_take_a_file(place):
    (place / "wrong.toml").write_text("rounds = 0\n")
    assert "wrong.toml: rounds is 0" in fedprivacy("audit", "--config", "wrong.toml", cwd=place, code=2).output
    (place / "asked.toml").write_text('task = "cancer"\nclients = 2\nepsilon = 2.0\n')
    fedprivacy("ask", "count", "--plan", "--config", "asked.toml", cwd=place)
    refused = fedprivacy("ask", "count", "--plan", "--config", "run/run.toml", cwd=place, code=2).output
    assert "run/run.toml: this command does not take rounds, local-steps" in " ".join(refused.split())


@pytest.mark.exhaustive
def test_a_run_is_repeated_from_python(place, tmp_path):
    run = fp.open_run(place / "run")
    again = fp.simulate(**run.keywords | {"out": tmp_path / "again"}, progress=False)
    assert same_results(again.folder) == same_results(run.folder)
    assert again.keywords == run.keywords
    kept = {name.replace("_", "-"): value for name, value in run.keywords.items()}
    assert tomllib.loads((run.folder / "run.toml").read_text()) == kept


@pytest.mark.parametrize(
    "given",
    [
        {"batch-size": 8.0, "seed": 2**63 - 1, "spend": 1.0},
        {"algorithm": "ditto", "local-steps": 4, "pull": 0.1},
        {"client-terms": '{"client-0": {"epsilon": 1.0}}', "speeds": "lognormal:1"},
        {"signing-key": 'a \\ "b" \u00fc \U0001f600\n\t.pem', "trackers": "mlflow"},
    ],
    ids=", ".join,
)
def test_every_setting_survives_its_file(given, tmp_path):
    config = resolve(given | {"out": "somewhere"})
    (tmp_path / "run.toml").write_bytes(as_toml(config))
    assert resolve(settings_in(tmp_path / "run.toml") | {"out": "somewhere"}) == config


SHORT = {"clients": 2, "rounds": 2, "progress": False, "drawn": False}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a baseline and of two private runs, one of them with another learning rate."""
    home = tmp_path_factory.mktemp("home")
    fp.simulate("cancer", privacy=False, out=home / "baseline", **SHORT)
    fp.simulate("cancer", epsilon=0.1, out=home / "tight", **SHORT)
    fp.simulate("cancer", epsilon=2.0, learning_rate=0.01, out=home / "slow", **SHORT)
    return home


def compared(runs, *names):
    return json.loads(fedprivacy("compare", "--json", *names, "--out", "compared", cwd=runs).stdout)


@pytest.mark.exhaustive
def test_it_says_what_each_run_reached_and_what_privacy_cost(runs):
    told = compared(runs, "baseline", "tight", "slow")
    baseline, tight, slow = told["runs"]
    for row in told["runs"]:
        rounds = rounds_of(runs / row["run"])
        accuracies = [one["metrics"]["accuracy"] for one in rounds]
        assert (row["final"], row["best"]) == (accuracies[-1], max(accuracies))
        assert row["best_round"] == 1 + accuracies.index(max(accuracies))
        assert row["epsilon"] == rounds[-1]["max_epsilon"]
    assert (baseline["privacy"], baseline["epsilon"], baseline["noise_multiplier"]) == (False, None, None)
    assert (baseline["cost"], tight["cost"]) == (None, pytest.approx(baseline["final"] - tight["final"]))
    assert told["differing"]["epsilon"] == ["no privacy", "0.1", "2"]
    assert told["cautions"] == ["slow and its baseline differ in learning-rate, too."]
    assert slow["noise_multiplier"] < tight["noise_multiplier"]
    printed = fedprivacy("compare", "baseline", "tight", cwd=runs).output
    (shown,) = (line for line in printed.partition("Settings that differ")[2].splitlines() if " epsilon " in line)
    assert re.findall(r"[\w.]+(?: \w+)?", shown) == ["epsilon", "no privacy", "0.1"]
    assert "no privacy" in printed and "Report: runs/comparison-1/compare.html" in printed
    assert (runs / "runs" / "comparison-1" / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_the_page_needs_no_network_and_escapes_names(runs):
    evil = runs / "<b>evil"
    shutil.copytree(runs / "tight", evil)
    settings = evil / "config.json"
    settings.write_text(settings.read_text().replace(json.dumps(str(runs / "tight")), json.dumps(str(evil))))
    compared(runs, "baseline", "<b>evil")
    page = (runs / "compared" / "compare.html").read_text()
    assert "<b>evil" not in page and "&lt;b&gt;evil" in page
    assert "default-src 'none'" in page and "<script" not in page
    assert not re.search(r"(src|href)=", page)
    words = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))
    assert "The price of privacy" in words and "the baseline" in words and "no privacy" in words
    in_python = fp.compare(fp.open_run(runs / "baseline"), runs / "tight")
    assert "<svg" in in_python._repr_html_() and "privacy costs" in repr(in_python)
