"""Additions take what CONTRIBUTING.md says: all of them are made in one copy of the project, and used there."""

import ast
import functools
import json
import operator
import os
import re
import subprocess
import sys

import pytest

from tests.additions.addition import ROOT
from tests.additions.client_column import CLIENT_COLUMN
from tests.additions.client_column import PROGRAM as USES_THE_COLUMN
from tests.additions.figure import FIGURE
from tests.additions.figure import PROGRAM as USES_THE_FIGURE
from tests.additions.layer_rule import PRELU
from tests.additions.layer_rule import PROGRAM as USES_THE_RULE
from tests.additions.mechanism import MECHANISM
from tests.additions.mechanism import PROGRAM as USES_THE_MECHANISM
from tests.additions.parts_of_a_run import PROGRAM as USES_ALL_THREE
from tests.additions.parts_of_a_run import SETTING, STRATEGY, TRACKER
from tests.additions.task import PROGRAM as USES_THE_TASK
from tests.additions.task import TASK

ADDITIONS = {
    "a layer rule": PRELU,
    "a mechanism": MECHANISM,
    "a strategy": STRATEGY,
    "a figure": FIGURE,
    "a column by client": CLIENT_COLUMN,
    "a tracker": TRACKER,
    "a setting": SETTING,
    "a task": TASK,
}
HELP = """
import pathlib, fedprivacy
assert pathlib.Path(fedprivacy.__file__).parent.parent == pathlib.Path.cwd(), fedprivacy.__file__
from fedprivacy.commands.app import app
app(["simulate", "--help-all"], standalone_mode=False)
"""
PROGRAMS = {
    "help": HELP,
    "figure": USES_THE_FIGURE,
    "column by client": USES_THE_COLUMN,
    "layer rule": USES_THE_RULE,
    "mechanism": USES_THE_MECHANISM,
    "parts of a run": USES_ALL_THREE,
    "task": USES_THE_TASK,
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_it_takes_what_is_promised(name):
    table = dict(re.findall(r"^\| \[([\w ]+)\].*?\|(.*)\|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert table.keys() == ADDITIONS.keys()
    assert ADDITIONS[name].counted() == tuple(map(int, table[name].split("|")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return functools.reduce(operator.or_, ADDITIONS.values()).made_in(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def printed(folder):
    """The lines that each program prints, one after the other in one process that imports the copy."""
    every = "".join(f"print(chr(0), end='')\nexec({program!r}, {{}})\n" for program in PROGRAMS.values())
    variables = {"PYTHONPATH": str(folder), "COLUMNS": "400", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", every]
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split("\0")[1:]
    return {name: part.splitlines() for name, part in zip(PROGRAMS, parts, strict=True)}


@pytest.mark.exhaustive
def test_the_help_offers_every_addition(printed):
    page = "\n".join(printed["help"])
    for words in ("fedtrimmedavg, krum, fedmedian", "wandb, table", "digits, cancer, wine"):
        assert words in page
    assert any("--evaluate-every" in line and "Rounds from one evaluation" in line for line in printed["help"])


@pytest.mark.exhaustive
def test_a_run_obeys_its_setting_takes_its_strategy_and_tells_its_tracker_of_every_round(printed, folder):
    wrong, mistyped, strategy, evaluated, epsilons = printed["parts of a run"]
    assert wrong == "evaluate-every is 0; choose a whole number from 1 to a billion."
    assert mistyped == "evaluate-every is 'often'; give a whole number."
    assert (strategy, evaluated) == ("FedMedian", "[2, 4]")
    told = (folder / "run" / "rounds.table").read_text().splitlines()
    assert told == ["0 0.0", *epsilons.split(", "), "finished"]


@pytest.mark.exhaustive
def test_a_task_is_learnt_a_mechanism_accounted_a_rule_taken_and_a_figure_drawn(printed):
    """The programs hold them against a formula, a loop over the records, and what the run did."""
    split, loss = printed["task"]
    records, different = map(int, split.split())
    assert records == different == 178 - 36  # the others are the server's
    untrained, trained = map(float, loss.split())
    assert trained < untrained
    *answer, epsilon = printed["mechanism"]
    assert json.loads("".join(answer))["epsilon"] == {"pld": json.loads(epsilon)}
    rows = printed["layer rule"]
    assert len(rows) == 2 and all(int(most) >= 9 for most in rows)  # it saw the records, and not the probes alone
    header, row, *_, card = printed["figure"]
    assert (header, row, card) == ("round,averaged,failed", "1,1,1", "turnout - Updates by round")


@pytest.mark.exhaustive
def test_a_column_by_client_is_in_rows_json_the_store_the_api_the_page_and_prometheus(printed):
    """The program holds rows and JSON against the run, and prints the others: one client was averaged, one was not."""
    stored, sorted_by, described, heading, metrics = printed["column by client"]
    assert (stored, sorted_by) == ("[('a', 1), ('b', None)]", "[1, None]")
    assert described == "newest round whose average holds its update; null: none"
    assert heading == "['Last averaged']"
    (sample,) = ast.literal_eval(metrics)
    assert sample.startswith('fedprivacy_client_last_averaged{client_id="a",') and sample.endswith("} 1.0")
