"""The table of client terms: what it says, everything that is wrong with it at once, and the noise that follows."""

import math
from pathlib import Path

import pytest

import fedprivacy as fp
from fedprivacy.commands.run_tables import plan_table
from fedprivacy.ledger import Allowance, Ledger
from fedprivacy.runs.prospect import client_groups, spending
from fedprivacy.runs.records.folder import RunWriter
from fedprivacy.runs.records.grid import SweepGrid
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from tests.flower.blobs import Blobs, plan_of


def table(tmp_path, *lines):
    file = tmp_path / "terms.csv"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def plan_with(tmp_path, *lines, **settings):
    return plan_of(Blobs(), client_terms=table(tmp_path, *lines), **{"epsilon": 3.0} | settings)


def test_json_says_the_same_and_so_does_a_mapping(tmp_path):
    file = table(tmp_path, "epsilon, client ,sampling-rate", "1,client-0,0.25", " inf, client-1 ,")
    mapping = {"client-0": {"epsilon": 1, "sampling_rate": 0.25}, "client-1": {"epsilon": math.inf}}
    own = [
        [(row["epsilon_by_round"][-1], row["budget"]) for row in fp.plan(Blobs(), client_terms=given, **rest).clients]
        for rest in [{"clients": 3, "noise_multiplier": 2.0, "epsilon": 30.0}]
        for given in (file, Path(file), mapping)
    ]
    assert own[0] == own[1] == own[2]
    assert [budget for _, budget in own[0]] == [1.0, None, 30.0]


def test_everything_that_is_wrong_is_said_at_once_with_its_line(tmp_path):
    file = table(
        tmp_path,
        "client,epsilon,noise_multiplier,sampling_rate",
        "client-0,much,0.01,2",
        "client-1,-1,nan,",
        ",3,,",
        "client-0,1,,",
    )
    with pytest.raises(ConfigError) as refused:
        plan_of(Blobs(), client_terms=file)
    assert refused.value.problems == [
        f"client-terms: line 2 of '{file}' (client-0): epsilon is 'much'; give a number.",
        f"client-terms: line 2 of '{file}' (client-0): noise-multiplier is 0.01; choose a number from 0.05 to 10,000.",
        f"client-terms: line 2 of '{file}' (client-0): sampling-rate is 2.0; choose a number above 0, at most 1.",
        f"client-terms: line 3 of '{file}' (client-1): noise-multiplier is nan; give a number.",
        f"client-terms: line 3 of '{file}' (client-1): epsilon is -1.0; choose a number above 0, or inf.",
        f"client-terms: line 4 of '{file}' names no client; write its client_id in the column client.",
        f"client-terms: line 5 of '{file}' (client-0) names a client that line 2 of '{file}' has named; leave one of "
        "them.",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client;epsilon\na;1\n", "with commas"),
        ("client,epsilon\na,1,2\n", "line 2 of .* has more cells"),
        ("client,epsilon\n", "names no client; give it a line, or leave it open"),
        ("terms.txt", "client-terms is 'terms.txt'; give FILE.csv with the column client"),
        ("missing.csv", "cannot be read: No such file"),
        ('{"a": 3}', "a has no terms by name"),
        ('{"a": ', "begins like JSON, and is none"),
        ('{"a": {"epsilon": 1}, "a": {"epsilon": 2}}', "has named; leave one of them"),
    ],
)
def test_what_is_no_table_of_terms_and_what_names_none(tmp_path, text, words):
    given = table(tmp_path, *text.splitlines()) if text.startswith("client") else text
    with pytest.raises(ConfigError, match=words):
        plan_of(Blobs(), client_terms=given)


def test_names_that_no_simulated_client_has_are_refused_before_anything_is_spent(tmp_path):
    file = table(tmp_path, "client,epsilon", "client-1,1", "7,1", "clinet-03,1", *(f"x-{n},1" for n in range(40, 50)))
    with pytest.raises(ConfigError) as refused:
        fp.simulate(Blobs(), clients=12, client_terms=file, out=str(tmp_path / "run"), progress=False)
    first, second, third, *_, last = refused.value.problems
    assert first == f"client_terms: line 2 of '{file}' (client-1): this run has no such client. Did you mean client-01?"
    assert "line 3" in second and "Did you mean client-07?" in second
    assert "line 4" in third and "Did you mean client-03?" in third
    assert "Its clients are client-00 to client-11, nor 8 others of the table" in last
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="no such client"):
        fp.plan(Blobs(), clients=12, client_terms={"client-01": {"epsilon": 1}, "client-1": {"epsilon": 1}})


def test_terms_with_which_not_one_step_fits_are_refused_each_with_what_would_do(tmp_path):
    lines = ["client,epsilon,noise_multiplier", "client-0,0.5,0.6", "client-1,9,0.6", "client-2,0.5,0.6", "client-3,2,"]
    with pytest.raises(ConfigError) as refused:
        plan_with(tmp_path, *lines)
    first, second = refused.value.problems
    assert "line 2" in first and "(client-0): epsilon 0.5 at delta 0.001 allows not one local step of " in first
    assert "sampling rate 0.5 and noise multiplier 0.6; give it a larger epsilon or noise_multiplier" in first
    assert "(client-2)" in second
    for lines, delta, words in (
        (["client-1,1e-7", "client-2,1"], 1e-12, r"line 2 of .* \(client-1\): epsilon is 1e-07 .*does not meet"),
        (["client-1,1", "client-2,inf"], 1e-3, r"\(client-2\): epsilon is inf"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_with(tmp_path, "client,epsilon", *lines, delta=delta)


def test_what_a_client_has_spent_counts_for_its_own_noise_alone(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    lines = ("client,epsilon", "client-0,2", "client-1,2", "client-2,2")
    fresh = plan_with(tmp_path, *lines, ledger=url, filter="adaptive")
    ledger, event = Ledger(url), fresh.event(30, "client-0")
    datasets = [f"blobs/client-{n}" for n in (1, 2)]
    ledger.open_budgets(dict.fromkeys(datasets, Allowance(PrivacyBudget(2.0, 1e-3), "adaptive")))
    ledger.reserve(Attempt("before", 1), event, {datasets[0]: 2, datasets[1]: 1000}, lambda *_: 1000)
    later = plan_with(tmp_path, *lines, ledger=url, filter="adaptive")
    noises = [later.noise.of(f"client-{n}") for n in range(4)]
    assert noises[0] == fresh.noise.of("client-0") < noises[1]
    assert noises[2] == noises[0]  # nothing is left, whatever the noise: it takes no part
    assert noises[3] == fresh.noise.shared


def test_the_clients_of_a_deployment_are_planned_by_their_names(tmp_path):
    plan = plan_with(tmp_path, "client,epsilon", "hospital-a,1", "hospital-b,2", clients=5)
    groups = {tuple(group.client_ids): group.allowance.budget.epsilon for group in client_groups(plan)}
    assert groups == {("hospital-a",): 1.0, ("hospital-b",): 2.0, ("client-2", "client-3", "client-4"): 3.0}
    shown = plan_table(plan, spending(plan))
    assert [column.header for column in shown.renderables[1].columns][1:] == [
        "budget",
        "sampling rate",
        "noise multiplier",
    ]


def test_a_sweep_notices_that_the_table_of_a_run_was_changed(tmp_path):
    file = table(tmp_path, "client,epsilon", "client-0,1")
    settings = {"task": "cancer", "clients": "3", "rounds": "2", "client-terms": file}
    grid = SweepGrid.of(settings, 1, tmp_path / "sweep", baseline=False)
    RunWriter(grid.runs[0].folder, grid.check()[0]).close()
    grid.check()  # the same, with the noise that was found
    table(tmp_path, "client,epsilon", "client-0,1.5")
    with pytest.raises(ConfigError, match="holds a run with another table of client-terms"):
        grid.check()
    table(tmp_path, "client,epsilon", "client-3,1")
    with pytest.raises(ConfigError, match="this run has no such client"):
        grid.check()
