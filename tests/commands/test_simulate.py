"""`fedprivacy simulate`, `plan` and `recommend`, from the command line, as a user types them."""

import json
import shlex

import pytest
import torch

import fedprivacy as fp
from fedprivacy.accounting import pld
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.records.run import open_run
from fedprivacy.tasks import load_task
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.commands.running import fedprivacy, started, summary, unwrapped

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.exhaustive
def test_the_main_job_learns_digits_within_epsilon_3_and_ends_with_a_table_the_report_and_the_next_command(tmp_path):
    """With its default settings, as a user types it."""
    done, folder = started("simulate", cwd=tmp_path), tmp_path / "runs" / "digits-1"
    history = read_history(folder)
    summary = history.summary()
    assert len(history.rounds) == 60 and summary["accuracy"] >= 0.88
    with torch.no_grad():
        assert load_task("digits").evaluate(open_run(folder).model())["accuracy"] == summary["accuracy"]
    for client in summary["clients"]:
        event = PoissonSampledGaussian(
            client["sampling_rate"], client["noise_multiplier"], NeighbouringRelation.ZERO_OUT
        )
        assert client["epsilon"] == pytest.approx(pld.epsilon({event: client["steps"]}, client["delta"]))
        assert 2.98 < client["epsilon"] <= 3.0 and client["delta"] == 1e-4
    assert all(f"client-{n} " in done.stdout for n in range(10)) and done.stdout.count("\n") <= 40
    for words in ("spent as planned", "sigma", "left", "budget epsilon 3, delta 0.0001", "report.html", "Next, "):
        assert words in done.stdout
    assert "largest epsilon 3.00 of 3" in done.stderr


SMALL = ("--task", "cancer", "--clients", "3")


def test_a_ledger_or_a_signing_key_in_a_folder_that_is_not_there_is_a_mistake_and_makes_none(tmp_path):
    folder = tmp_path / "nowhere"
    refused = fedprivacy("plan", "--ledger", f"sqlite:///{folder}/x.db", cwd=tmp_path, code=2)
    assert refused.stderr.startswith(f"error: ledger is '{folder / 'x.db'}', and there is no folder '{folder}'; make")
    assert refused.stderr.count("\n") == 1
    refused = fedprivacy("simulate", *SMALL, "--signing-key", folder / "key.pem", cwd=tmp_path, code=2)
    assert f"there is no folder '{folder}'" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_task_of_one_s_own_gets_noise_that_nobody_can_repeat(tmp_path):
    (tmp_path / "mine.py").write_text("from fedprivacy.tasks.cancer import Cancer\nclass Mine(Cancer): pass\n")
    options = ("--task", "mine.py:Mine", "--clients", "3", "--rounds", "1")
    printed = [fedprivacy("simulate", *options, "--out", name, cwd=tmp_path).stdout for name in "ab"]
    assert all("cannot be repeated" in text for text in printed)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] != models[1]


@pytest.mark.exhaustive
def test_the_plan_says_what_the_run_then_spends(tmp_path):
    options = ("--rounds", "4", "--epsilon", "2", "--ledger", "x.db")
    planned = json.loads(fedprivacy("plan", "--json", *options, "--workers", "2", "--out", "x", cwd=tmp_path).stdout)
    assert list(tmp_path.iterdir()) == []
    run = summary(*options, "--out", "run", cwd=tmp_path)
    assert run["clients"][0]["noise_multiplier"] == planned["noise_multiplier"]
    spent = [record.spent["client-3"].epsilon for record in read_history(tmp_path / "run").rounds]
    assert planned["clients"][3]["client_id"] == "client-3"
    assert planned["clients"][3]["epsilon_by_round"] == pytest.approx(spent)


def test_a_run_names_its_machine_in_its_folder_and_where_all_is_wanted_in_its_last_lines(tmp_path):
    printed = fedprivacy("simulate", "--verbose", *SMALL, "--rounds", "1", "--out", "run", cwd=tmp_path).stdout
    kept = json.loads((tmp_path / "run" / "machine.json").read_text())
    machine = fp.open_run(tmp_path / "run").machine
    assert kept["gradients"] == machine.gradients and machine.gradients.split(",")[0] == "program"
    assert kept["records"] == 256 and kept["torch"] == torch.__version__ and kept["noise"] == "numpy"
    assert f"This machine: {machine.line}." in printed


@pytest.mark.exhaustive
def test_what_was_not_decided_on_this_machine_is_left_open_and_a_run_of_an_earlier_version_names_none(tmp_path):
    job = {"rounds": 1, "progress": False}
    stacks = fp.simulate("cancer", clients=100, epsilon=5.0, out=tmp_path / "stacks", **job).machine
    baseline = fp.simulate("cancer", clients=3, privacy=False, out=tmp_path / "run", **job)
    assert (stacks.gradients, stacks.records, "gradients by" in stacks.line) == ("stacks of clients", 0, True)
    machine = baseline.machine
    assert (machine.gradients, machine.records, "gradients by" in machine.line) == ("", 0, False)
    (tmp_path / "run" / "machine.json").unlink()
    assert fp.open_run(baseline.folder).machine is None


def test_recommended_settings_have_reasons_and_a_line_to_paste_that_keeps_the_budget(tmp_path):
    asked = ("recommend", "cancer", "--epsilon", "2", "--clients", "5")
    words = unwrapped(fedprivacy(*asked, cwd=tmp_path).stdout)
    assert "For cancer at epsilon 2, delta 0.0001" in words and "455 records in 5 clients" in words
    told = json.loads(fedprivacy(*asked, "--json", cwd=tmp_path).stdout)
    assert {choice["key"].replace("-", "_") for choice in told["choices"]} <= told["settings"].keys()
    assert all(choice["why"] for choice in told["choices"]) and told["command"] in words
    assert told["call"].startswith('fp.simulate("cancer"')
    arguments = shlex.split(told["command"].partition(" simulate ")[2])
    planned = json.loads(fedprivacy("plan", *arguments, "--json", cwd=tmp_path).stdout)
    assert 1.9 < planned["clients"][0]["epsilon_by_round"][-1] <= 2.0 and not (tmp_path / "runs").exists()
