"""Commands of docs/how-to/several-runs.md, typed."""

import re
import shlex
from pathlib import Path

import pytest

from fedprivacy.accounting import pld
from fedprivacy.ledger import Ledger
from fedprivacy.runs.records.folder import read_history
from tests.commands.running import fedprivacy

PAGE = (Path(__file__).parents[2] / "docs/how-to/several-runs.md").read_text()
COMMANDS = [
    shlex.split(line.removeprefix("fedprivacy "))
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)
    for line in block.splitlines()
]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("undrawn")
def test_the_commands_of_the_page_share_one_budget(tmp_path):
    assert [command[0] for command in COMMANDS] == ["simulate", "plan", "simulate", "ledger"]
    outputs = [fedprivacy(*command, cwd=tmp_path, columns=100).stdout for command in COMMANDS]
    figures = re.search(r"│ 10 clients │.*3 │.*│", PAGE)[0].split()
    assert figures == re.search(r"│ 10 clients │ +3 │.*│", outputs[1])[0].split()
    spent = [
        [client.epsilon for client in read_history(tmp_path / f"runs/digits-{number}").last.spent.values()]
        for number in (1, 2)
    ]
    assert all(0.99 < epsilon <= 1.0 for epsilon in spent[0])
    assert all(1.98 < epsilon <= 2.0 for epsilon in spent[1])
    ledger = Ledger(f"sqlite:///{tmp_path / 'study.db'}")
    history = ledger.accounts(["digits/client-0"])["digits/client-0"].history
    assert len(history) == 2 and set(history.values()) == {10}
    assert pld.epsilon(history, 1e-4) == pytest.approx(spent[1][0], rel=1e-4)
    assert {allowance.filter for allowance in ledger.allowances(ledger.dataset_ids()).values()} == {"adaptive"}

    fedprivacy(*COMMANDS[0], cwd=tmp_path)
    refused = fedprivacy(*COMMANDS[0], cwd=tmp_path, code=2).stderr
    assert re.match(r"error: client-0 has spent .* of epsilon 3\.0 at delta 0\.0001: not one more step", refused)
    assert len(list((tmp_path / "runs").iterdir())) == 3
