"""A finished run's figures are recomputed from what its clients executed."""

import json
from shutil import copytree

import pytest

import fedprivacy as fp
from fedprivacy.audit.gates import claimed_epsilon
from fedprivacy.ledger import Ledger
from fedprivacy.runs.records.folder import RunFolderError
from fedprivacy.values.budget import PrivacyBudget
from tests.privacy.audited_tasks import Small
from tests.privacy.bugs.swapped import planted
from tests.runs.rounds import falsify, rounds_of

pytestmark = pytest.mark.usefixtures("undrawn")


def run(folder, task=None, **settings):
    """A finished run's folder."""
    usual = {"clients": 2, "rounds": 3, "local_steps": 5, "noise_multiplier": 2.0, "seed": 1, "device": "cpu"}
    fp.simulate(task or Small(), out=str(folder), **usual | settings)
    return folder


def told(folder, change):
    """Change what each line of a run's rounds says of its clients."""
    lines = rounds_of(folder)
    for line in lines:
        for client in line["clients"]:
            change(client)
    falsify(folder, lines)


def configure(folder, other):
    """Let a run's folder say that the run was configured otherwise."""
    config = json.loads((folder / "config.json").read_text())
    settings = config["settings"] | other.get("settings", {})
    (folder / "config.json").write_text(json.dumps(config | other | {"settings": settings}))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with two steps a round, of which tests take copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedprivacy.server.recorder.draw", lambda history, folder: None)
        return run(tmp_path_factory.mktemp("finished") / "run", local_steps=2)


@pytest.fixture
def folder(finished, tmp_path):
    return copytree(finished, tmp_path / "run")


def test_an_epsilon_one_percent_below_what_was_spent_is_noticed(folder):
    def lower(client):
        client["epsilon"] *= 0.99

    told(folder, lower)
    gate = claimed_epsilon.check_run(folder)
    assert not gate.passed
    assert "is shown an epsilon" in gate.reasons[0]


LATE = {"participants": ["client-0"], "failures": {"client-1": "too-late"}}
UNCHARGED = {
    "one step of two": ({"steps": 3}, {}, 0, "2 steps, and was charged 1"),
    "both steps, of a budget that is spent": ({"steps": 2, "steps_left": 0}, {}, 0, "2 steps, and was charged 0"),
    "one step of an update that came too late": ({"steps": 3}, LATE, 0, "2 steps, and was charged 1"),
    "an evaluation": ({}, {}, 1, "3 steps, and was charged 2"),
}
"""Charges that client-1 lacks in round 2: fields that the round then shows of it, and the number of evaluations."""


@pytest.mark.parametrize("with_ledger", [True, False], ids=["with its ledger", "by its folder alone"])
@pytest.mark.parametrize("uncharged", UNCHARGED)
def test_what_was_asked_for_and_not_charged_is_noticed(folder, with_ledger, uncharged):
    client, line, evaluations, words = UNCHARGED[uncharged]
    if not with_ledger:
        for file in folder.glob("ledger.db*"):
            file.unlink()
    lines = rounds_of(folder)
    lines[1]["clients"][1] |= client
    falsify(folder, [lines[1] | line])
    configure(folder, {"settings": {"local-evaluation": evaluations}})
    assert f"client-1 took part in round 2 with {words}." in claimed_epsilon.check_run(folder).reasons


def test_an_epsilon_that_falls_is_noticed_though_the_last_one_is_right(folder):
    lines = rounds_of(folder)
    lines[0]["clients"][0]["epsilon"] *= 3.0
    falsify(folder, lines)
    (reason,) = claimed_epsilon.check_run(folder).reasons
    assert "fell in round 2; it never can" in reason


def test_a_step_that_the_run_shows_and_the_ledger_does_not_hold_is_noticed(folder):
    def one_more(client):
        client["steps"] += 1

    told(folder, one_more)
    reasons = claimed_epsilon.check_run(folder).reasons
    assert reasons and all("The ledger holds fewer steps of client-" in reason for reason in reasons)


@pytest.mark.parametrize(
    "other", [{"settings": {"sampling-rate": 0.05}}, {"noise_multiplier": 2.1}, {"relation": "zero-out"}], ids=str
)
def test_another_event_than_was_charged_is_noticed(folder, other):
    """The rate is that of everybody's records, as it were; the noise is more than was charged."""
    configure(folder, other)
    assert any("client-1 was charged for" in reason for reason in claimed_epsilon.check_run(folder).reasons)


@pytest.mark.exhaustive
def test_an_accountant_that_begins_anew_in_every_round_is_noticed(tmp_path):
    with planted("epsilon is shown for the last round alone"):
        folder = run(tmp_path / "run")
    assert not claimed_epsilon.check_run(folder).passed


@pytest.mark.exhaustive
def test_a_figure_at_another_delta_than_the_budget_s_is_noticed(tmp_path):
    ledger_file = tmp_path / "ledger.db"
    settings = {"ledger": str(ledger_file), "epsilon": 90.0, "delta": 1e-4}
    run(tmp_path / "one", **settings)
    book = Ledger(f"sqlite:///{ledger_file}")
    for dataset in book.dataset_ids():
        book.set_budget(dataset, PrivacyBudget(90.0, 1e-6), None, "a smaller delta")
    with planted("epsilon is shown at the configuration's delta"):
        folder = run(tmp_path / "two", **settings)
    gate = claimed_epsilon.check_run(folder)
    assert not gate.passed
    assert any("delta" in reason for reason in gate.reasons)
    assert claimed_epsilon.check_run(run(tmp_path / "three", **settings)).passed


@pytest.mark.exhaustive
def test_a_run_without_privacy_fails(tmp_path):
    folder = tmp_path / "run"
    fp.simulate(Small(), out=str(folder), clients=2, rounds=2, seed=1, privacy=False, device="cpu")
    gate = claimed_epsilon.check_run(folder)
    assert not gate.passed
    assert "without privacy" in gate.reasons[0]


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        claimed_epsilon.check_run(tmp_path)
