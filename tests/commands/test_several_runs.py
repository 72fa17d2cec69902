"""What docs/how-to/several-runs.md tells to type, typed."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprivacy.accounting import pld
from fedprivacy.commands.app import app
from fedprivacy.ledger import Ledger
from fedprivacy.runs.folder import read_history

PAGE = (Path(__file__).parents[2] / "docs/how-to/several-runs.md").read_text()
COMMANDS = [
    shlex.split(line.removeprefix("fedprivacy "))
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)
    for line in block.splitlines()
]


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """A command in an empty folder: its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(arguments, code=0):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    return invoke


def test_the_commands_of_the_page_share_one_budget(typed, tmp_path):
    assert [command[0] for command in COMMANDS] == ["simulate", "plan", "simulate", "ledger"]
    outputs = [typed(command) for command in COMMANDS]
    figures = re.search(r"│ 10 clients │.*3 │.*│", PAGE)[0].split()
    assert figures == re.search(r"│ 10 clients │ +3 │.*│", outputs[1])[0].split()
    spent = [
        [client.epsilon for client in read_history(tmp_path / f"runs/digits-{number}").last.spent.values()]
        for number in (1, 2)
    ]
    assert all(0.99 < epsilon <= 1.0 for epsilon in spent[0])
    assert all(1.98 < epsilon <= 2.0 for epsilon in spent[1])
    ledger = Ledger("sqlite:///study.db")
    history = ledger.accounts(["digits/client-0"])["digits/client-0"].history
    assert len(history) == 2 and set(history.values()) == {10}
    assert pld.epsilon(history, 1e-4) == pytest.approx(spent[1][0], rel=1e-4)
    assert {allowance.filter for allowance in ledger.allowances(ledger.dataset_ids()).values()} == {"adaptive"}

    typed(COMMANDS[0])
    refused = typed(COMMANDS[0], code=2)
    assert re.match(r"error: client-0 has spent .* of epsilon 3\.0 at delta 0\.0001: not one more step", refused)
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_a_second_run_with_other_noise_works_without_a_word_about_filters(typed, tmp_path):
    options = ["simulate", "--epsilon", "3", "--rounds", "2", "--clients", "2", "--ledger", "sqlite:///x.db"]
    typed([*options, "--noise-multiplier", "6"])
    typed([*options, "--noise-multiplier", "5"])
    typed(options)  # open: what is left
    last = read_history(tmp_path / "runs/digits-3")
    assert len(last.rounds) == 2
    assert all(2.0 < client.epsilon <= 3.0 for client in last.last.spent.values())
    assert last.last.spent["client-0"].steps_left == 0


def test_own_noise_is_limited_by_a_spend_and_a_spend_above_the_budget_is_refused(typed, tmp_path):
    options = ["simulate", "--clients", "2", "--noise-multiplier", "4.5", "--rounds", "9", "--out", "run"]
    typed([*options, "--epsilon", "3", "--spend", "1"])
    history = read_history(tmp_path / "run")
    (event,) = Ledger("sqlite:///run/ledger.db").accounts(["digits/client-0"])["digits/client-0"].history
    spent = history.last.spent["client-0"]
    assert 0 < len(history.rounds) < 9 and not spent.steps_left
    assert spent.epsilon <= 1.0 < pld.epsilon({event: spent.steps + 1}, 1e-4)
    refused = typed(["plan", "--epsilon", "1", "--spend", "2"], code=2)
    assert "spend is 2.0, and epsilon, the budget of all runs, is 1.0; give a spend of at most epsilon" in refused
