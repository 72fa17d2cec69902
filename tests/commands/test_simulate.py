"""`fedprivacy simulate` and `plan`, from the command line, as a user types them."""

import json
import shlex

import pytest
import torch

import fedprivacy as fp
from fedprivacy.accounting import pld
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.records.run import open_run
from fedprivacy.tasks import load_task
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.commands.running import fedprivacy, started, summary
from tests.runs.rounds import rounds_of

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    """The main job with its default settings, run once as a user does: (folder, what it printed)."""
    folder = tmp_path_factory.mktemp("main-job")
    return folder, started("simulate", cwd=folder)


@pytest.mark.exhaustive
def test_the_main_job_learns_digits_within_epsilon_3(main_job):
    folder, task = main_job[0] / "runs" / "digits-1", load_task("digits")
    history = read_history(folder)
    assert len(history.rounds) == 60
    assert history.summary()["accuracy"] >= 0.88
    with torch.no_grad():
        assert task.evaluate(open_run(folder).model())["accuracy"] == history.summary()["accuracy"]
    clients = history.summary()["clients"]
    assert len(clients) == 10
    for client in clients:
        event = PoissonSampledGaussian(
            client["sampling_rate"], client["noise_multiplier"], NeighbouringRelation.ZERO_OUT
        )
        assert client["epsilon"] == pytest.approx(pld.epsilon({event: client["steps"]}, client["delta"]))
        assert 2.98 < client["epsilon"] <= 3.0
        assert client["delta"] == 1e-4


@pytest.mark.exhaustive
def test_it_ends_with_a_table_the_report_and_the_next_command(main_job):
    printed = main_job[1].stdout
    assert all(f"client-{n} " in printed for n in range(10)) and printed.count("\n") <= 40
    for words in ("spent as planned", "sigma", "left", "budget epsilon 3, delta 0.0001", "report.html", "Next, "):
        assert words in printed
    assert "largest epsilon 3.00 of 3" in main_job[1].stderr


@pytest.mark.exhaustive
def test_the_folder_receives_every_file(main_job):
    folder = main_job[0] / "runs" / "digits-1"
    names = {path.name for path in folder.iterdir()}
    results = {"run.db", "report.html", "figure.png", "model.safetensors", "config.json", "run.toml"}
    assert names == results | {"ledger.db", "checkpoint.safetensors", "machine.json"}
    lines = rounds_of(folder)
    assert [line["round"] for line in lines] == list(range(1, 61))
    assert lines[-1].keys() == {
        "round", "metrics", "clients", "participants", "failures", "exhausted", "unreconciled", "max_epsilon",
        "privacy", "since", "most_charged",
    }  # fmt: skip
    assert json.loads((folder / "config.json").read_text())["settings"]["epsilon"] == 3.0
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


SMALL = ("--task", "cancer", "--clients", "3")


def test_two_runs_of_one_round_report_the_epsilon_of_two_if_they_share_a_ledger(tmp_path):
    options = (*SMALL, "--noise-multiplier", "2")
    first, second = (summary(*options, "--rounds", "1", "--ledger", "shared.db", cwd=tmp_path) for _ in range(2))
    together = summary(*options, "--rounds", "2", cwd=tmp_path)
    assert first["max_epsilon"] < second["max_epsilon"] == together["max_epsilon"]
    assert second["clients"][0]["steps"] == together["clients"][0]["steps"]


def test_a_ledger_is_its_file_wherever_one_is_named(tmp_path, monkeypatch):
    settings = {"rounds": 1, "noise_multiplier": 2.0, "progress": False}
    options = ("--task", "cancer", "--rounds", "1", "--noise-multiplier", "2")
    summary(*options, "--ledger", "shared.db", "--out", "first", cwd=tmp_path)
    ledger = json.loads((tmp_path / "first" / "config.json").read_text())["settings"]["ledger"]
    assert ledger == f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.chdir(tmp_path)
    assert fp.simulate("cancer", **settings, ledger="shared.db").clients[0]["rounds"] == 2
    assert fp.simulate("cancer", **settings, ledger=tmp_path / "shared.db").clients[0]["rounds"] == 3
    shown = json.loads(fedprivacy("ledger", "show", "--ledger", "shared.db", "--json", cwd=tmp_path).stdout)
    assert shown["datasets"][0]["charges"] == 3
    planned = json.loads(fedprivacy("plan", "--json", *options, "--ledger", "shared.db", cwd=tmp_path).stdout)
    fresh = json.loads(fedprivacy("plan", "--json", *options, cwd=tmp_path).stdout)
    assert planned["clients"][0]["epsilon_by_round"] > fresh["clients"][0]["epsilon_by_round"]
    again = fedprivacy("simulate", "--resume", "first", "--ledger", "other.db", cwd=tmp_path, code=2)
    assert "ledger is other.db, but the run goes on with its own" in again.stderr
    fedprivacy("simulate", "--resume", "first", "--ledger", "shared.db", cwd=tmp_path)


@pytest.mark.parametrize("name", ["P%41", "a b"])
def test_a_run_and_its_ledger_are_in_the_folder_that_was_named_whatever_characters_its_name_has(
    name, tmp_path, monkeypatch
):
    settings = {"rounds": 1, "noise_multiplier": 2.0, "progress": False, "drawn": False}
    monkeypatch.chdir(tmp_path)
    fp.simulate("cancer", **settings, out=name)
    again = fp.simulate("cancer", **settings, out="again", ledger=f"{name}/ledger.db")
    assert again.clients[0]["rounds"] == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, "again"])
    catalogue = Catalogue([name])
    runs = [catalogue.store_of(each.facts.run_id).run(each.facts.run_id) for each in catalogue.listing().runs]
    assert len(runs) == 2 and all(run.charges(limit=9, offset=0)[0] > 0 for run in runs)
    shown = json.loads(fedprivacy("ledger", "show", "--ledger", f"{name}/ledger.db", "--json", cwd=tmp_path).stdout)
    assert shown["datasets"][0]["charges"] == 2


def test_noise_that_takes_the_task_s_budget_away_is_said_once(tmp_path, caplog):
    options = ("plan", "--task", "cancer", "--rounds", "1", "--noise-multiplier", "2")
    for beside, told in (((), 1), (("--epsilon", "8"), 0)):
        caplog.clear()
        fedprivacy(*options, *beside, cwd=tmp_path)
        words = (
            "noise-multiplier 2 was given: the task's epsilon 2 is no budget of this run; give epsilon 2, too, for one."
        )
        assert [record.getMessage() for record in caplog.records].count(words) == told


def test_a_plan_of_which_not_one_step_fits_into_the_budget_says_so(tmp_path, caplog):
    options = ("plan", "--task", "cancer", "--rounds", "2", "--epsilon", "1", "--noise-multiplier")
    for noise, told in (("0.6", 1), ("9", 0)):
        caplog.clear()
        fedprivacy(*options, noise, cwd=tmp_path)
        words = (
            f"not one step with noise multiplier {noise} fits into what is left of epsilon 1; raise epsilon or noise"
        )
        assert sum(words in record.getMessage() for record in caplog.records) == told


def test_a_ledger_or_a_signing_key_in_a_folder_that_is_not_there_is_a_mistake_and_makes_none(tmp_path):
    folder = tmp_path / "nowhere"
    refused = fedprivacy("plan", "--ledger", f"sqlite:///{folder}/x.db", cwd=tmp_path, code=2)
    assert refused.stderr.startswith(f"error: ledger is '{folder / 'x.db'}', and there is no folder '{folder}'; make")
    assert refused.stderr.count("\n") == 1
    refused = fedprivacy("simulate", *SMALL, "--signing-key", folder / "key.pem", cwd=tmp_path, code=2)
    assert f"there is no folder '{folder}'" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def proposed(printed):
    """The commands under "Next", each as a line to paste."""
    return [line.strip() for line in printed.stdout.partition("\nNext")[2].splitlines()[1:]]


def typed(line):
    return shlex.split(line)[shlex.split(line).index("fedprivacy") + 1 :]


OTHERS = ("--clients", "3", "--rounds", "2", "--seed", "4")


@pytest.fixture(scope="module")
def few_rounds(tmp_path_factory):
    """A run with a task and names that a shell would take apart: (folder, what it printed)."""
    folder = tmp_path_factory.mktemp("a run")
    (folder / "my task.py").write_text("from fedprivacy.tasks.cancer import Cancer\nclass Mine(Cancer): pass\n")
    options = ("--task", "my task.py:Mine", *OTHERS, "--epsilon", "0.5", "--out", "first [a] run")
    return folder, fedprivacy("simulate", *options, cwd=folder)


def test_what_is_proposed_next_is_the_same_run_with_a_tighter_budget(few_rounds):
    folder, printed = few_rounds
    plan, simulate = proposed(printed)
    assert typed(plan)[1:] == typed(simulate)[1:] == ["--epsilon", "0.2", "--task", "my task.py:Mine", *OTHERS]
    shown = fedprivacy(*typed(plan), cwd=folder).stdout
    assert "budget epsilon 0.2" in shown and "3 clients" in shown
    ran = fedprivacy(*typed(simulate), cwd=folder)
    (tighter,) = (folder / "runs").iterdir()
    first, second = read_history(folder / "first [a] run"), read_history(tighter)
    unlike = {key for key, value in first.settings.items() if second.settings[key] != value}
    assert unlike == {"epsilon", "out"}
    assert second.last.max_epsilon <= 0.2 < first.last.max_epsilon
    assert typed(proposed(ran)[0])[2] == "0.1"
    (line,) = [line for line in printed.stdout.splitlines() if line.startswith("In a browser")]
    assert typed(line.partition(": ")[2]) == ["dashboard", "--store", "first [a] run"]  # outside of `runs`


def test_after_noise_without_a_budget_one_is_proposed_that_is_tighter(tmp_path):
    options = ("--task", "cancer", "--rounds", "1", "--noise-multiplier", "2")
    printed = fedprivacy("simulate", *options, "--out", "a", cwd=tmp_path)
    command, _, epsilon, *others = typed(proposed(printed)[1])
    assert (command, others) == ("simulate", ["--task", "cancer", "--rounds", "1"])
    assert 0.0 < float(epsilon) < read_history(tmp_path / "a").last.max_epsilon


def test_on_a_shared_ledger_what_is_left_is_proposed_not_a_budget_that_is_spent_already(tmp_path):
    (folder := tmp_path / "work").mkdir()
    options = ("--task", "cancer", "--rounds", "1", "--ledger", "../all runs.db")
    (line,) = proposed(fedprivacy("simulate", *options, cwd=folder))
    assert typed(line) == ["ledger", "show", "--ledger", "../all runs.db"]
    assert "client-0" in fedprivacy(*typed(line), cwd=folder).stdout
    found = Catalogue([str(folder / "runs")]).listing()  # what `fedprivacy dashboard` shows
    assert [run.facts.name for run in found.runs] == ["cancer-1"] and not found.problems


def test_a_task_of_one_s_own_gets_noise_that_nobody_can_repeat(tmp_path):
    (tmp_path / "mine.py").write_text("from fedprivacy.tasks.cancer import Cancer\nclass Mine(Cancer): pass\n")
    options = ("--task", "mine.py:Mine", "--clients", "3", "--rounds", "1")
    printed = [fedprivacy("simulate", *options, "--out", name, cwd=tmp_path).stdout for name in "ab"]
    assert all("cannot be repeated" in text for text in printed)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] != models[1]


def test_the_plan_says_what_the_run_then_spends(tmp_path):
    options = ("--rounds", "4", "--epsilon", "2", "--ledger", "x.db")
    planned = json.loads(fedprivacy("plan", "--json", *options, "--workers", "2", "--out", "x", cwd=tmp_path).stdout)
    assert list(tmp_path.iterdir()) == []
    run = summary(*options, "--out", "run", cwd=tmp_path)
    assert run["clients"][0]["noise_multiplier"] == planned["noise_multiplier"]
    spent = [record.spent["client-3"].epsilon for record in read_history(tmp_path / "run").rounds]
    assert planned["clients"][3]["client_id"] == "client-3"
    assert planned["clients"][3]["epsilon_by_round"] == pytest.approx(spent)
