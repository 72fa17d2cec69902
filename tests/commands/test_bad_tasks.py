"""A task that does not work is told of before anything is spent: which method, for whom, which line, and what to do."""

import json
import re
import textwrap

import pytest

import fedprivacy as fp
from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.simulated.trial import try_task
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.tasks import load_task
from tests.commands.running import fedprivacy

WORKS = {
    "head": "import fedprivacy as fp, numpy as np, torch",
    "body": "recipe = fp.Recipe(clients=2, rounds=1, delta=1e-3)",
    "model": "return torch.nn.Linear(2, 2)",
    "loss": "return torch.nn.functional.cross_entropy(outputs, targets, reduction='none')",
    "shard": "return fp.Shard(torch.zeros(50, 2), torch.zeros(50).long())",
    "evaluate": "return {'accuracy': 0.5}",
}
TASK = """\
{head}
class Mine(fp.Task):
    {body}
    def model(self):
        {model}
    def loss(self, outputs, targets):
        {loss}
    def shard(self, source):
        {shard}
    def evaluate(self, model):
        {evaluate}
"""
PARTS = "return ([fp.Shard(torch.zeros(50, 2), torch.zeros(50).long())] * 2)"

BAD = {
    "a file that is no Python": ({"head": "import ("}, "SyntaxError", "mine.py, line 1"),
    "a module that is not there": ({"head": "import nosuchmodule"}, "No module named 'nosuchmodule'", "line 1"),
    "a class that wants arguments": (
        {"body": "def __init__(self, folder): pass"},
        "cannot be made without arguments",
        "'folder'",
        "give each a default",
    ),
    "a class that fails": ({"body": "def __init__(self): open('none.csv')"}, "cannot be made", "none.csv", "line 3"),
    "no such class": (
        {"head": "import fedprivacy as fp\nclass Other: pass\nraise SystemError"},
        "SystemError",
        "line 3",
    ),
    "a model that fails": ({"model": "raise RuntimeError('no weights')"}, "model() fails", "no weights", "line 5"),
    "no model": ({"model": "return None"}, "model() returns a NoneType", "return a torch.nn.Module"),
    "a model that mixes records": ({"model": "return torch.nn.BatchNorm1d(2)"}, "BatchNorm1d", "use GroupNorm"),
    "a model without parameters": ({"model": "return torch.nn.ReLU()"}, "no trainable parameter"),
    "a model for other records": ({"model": "return torch.nn.Linear(3, 2)"}, "records of client-0, shape [2, 2]"),
    "a loss that fails": ({"loss": "raise ValueError('bad loss')"}, "loss() for client-0 fails", "bad loss", "line 7"),
    "a loss of the batch": (
        {"loss": "return torch.nn.functional.cross_entropy(outputs, targets)"},
        "return one value for each record",
        "reduction='none'",
    ),
    "a label out of range": ({"shard": "return fp.Shard(torch.zeros(9, 2), torch.full((9,), 7))"}, "Target 7 is out"),
    "records that are not there": (
        {"shard": "open('nowhere.csv')"},
        "shard() for client-0 fails",
        "nowhere.csv",
        "line 9",
    ),
    "numpy's arrays": (
        {"shard": "return fp.Shard(np.zeros((9, 2)), np.zeros(9))"},
        "inputs are a ndarray",
        "torch.as_tensor",
        "line 9",
    ),
    "no shard": ({"shard": "return torch.zeros(9, 2), torch.zeros(9)"}, "returns a tuple", "return fedprivacy.Shard("),
    "a row without a target": ({"shard": "return fp.Shard(torch.zeros(9, 2), torch.zeros(8))"}, "differ in length"),
    "a split in fewer parts": (
        {"shard": f"{PARTS}[source.partition_id]", "body": "recipe = fp.Recipe(clients=4, delta=1e-3)"},
        "shard() for client-2 fails",
        "list index out of range",
        "part 3 of 4",
        "lower clients",
    ),
    "an evaluation that fails": ({"evaluate": "open('test.csv')"}, "evaluate() fails", "test.csv", "line 11"),
    "no metrics": ({"evaluate": "return None"}, "evaluate() returns a NoneType", "numbers by name"),
    "a text for a metric": ({"evaluate": "return {'accuracy': 'good'}"}, "a str for 'accuracy'", "numbers by name"),
    "a tensor of several": ({"evaluate": "return {'accuracy': torch.ones(2)}"}, "a Tensor for 'accuracy'", "by name"),
    "another metric": ({"evaluate": "return {'auc': 0.5}"}, "auc and not its metric, accuracy", "metric = 'auc'"),
}


def written(folder, **parts):
    lines = {name: textwrap.indent(text, " " * 8).lstrip() for name, text in (WORKS | parts).items()}
    (folder / "mine.py").write_text(TASK.format(**lines | {"head": parts.get("head", WORKS["head"])}))
    return f"{folder / 'mine.py'}:Mine"


@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_with_a_task_is_said_in_one_line_before_a_run(tmp_path, kind):
    parts, *words = BAD[kind]
    printed = fedprivacy("simulate", "--task", written(tmp_path, **parts), cwd=tmp_path, code=2).output
    assert "error: task" in printed
    assert "Traceback" not in printed
    assert "came within" not in printed
    for word in words:
        assert word in printed
    assert not (tmp_path / "runs").exists()


def test_where_an_error_came_from_is_shown_on_request(tmp_path):
    task = written(tmp_path, evaluate="open('test.csv')")
    printed = fedprivacy("simulate", "--task", task, "--traceback", cwd=tmp_path, code=2).output
    assert "Traceback" in printed
    assert "open('test.csv')" in printed


def test_a_notebook_is_told_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fp.ConfigError, match=r"evaluate\(\) fails: FileNotFoundError.* \(mine.py, line 11\)"):
        fp.simulate(written(tmp_path, evaluate="open('test.csv')"), progress=False)


def test_a_task_says_how_many_clients_there_are(tmp_path):
    printed = fedprivacy("plan", "--task", written(tmp_path), "--json", cwd=tmp_path).stdout
    assert [client["client_id"] for client in json.loads(printed)["clients"]] == ["client-0", "client-1"]


def test_to_be_tried_draws_nothing(tmp_path):
    task = load_task(written(tmp_path, model="return torch.nn.Linear(2, 2 + 0 * int(np.random.rand()))"))
    config, before = resolve({}, task), RandomState.now()
    try_task(task, config, range(2))
    assert RandomState.now() == before


@pytest.mark.usefixtures("undrawn")
def test_a_budget_that_is_spent_ends_a_run_before_it_begins(tmp_path):
    task = written(tmp_path, body="def partition(self, parts): return 'always the same'")
    settings = ("--task", task, "--clients", "2", "--rounds", "1", "--ledger", "sqlite:///spent.db")
    fedprivacy("simulate", *settings, cwd=tmp_path)
    spent = charges(tmp_path)
    printed = fedprivacy("simulate", *settings, "--out", "second", cwd=tmp_path, code=2).output
    assert re.search(r"client-0 has spent .* of epsilon 3\.0 at delta 1e-05: not one more step", printed)
    again = (*settings, "--epsilon", "3", "--noise-multiplier", "9", "--out", "second")
    printed = fedprivacy("simulate", *again, cwd=tmp_path, code=2).output
    assert "client-0 has spent" in printed
    assert "of 3 at delta 1e-5" in printed
    assert "nor for 1 other client" in printed
    assert "Raise epsilon" in printed
    assert charges(tmp_path) == spent
    assert not (tmp_path / "second" / "report.html").exists()


def charges(folder):
    datasets = fedprivacy("ledger", "show", "--ledger", "spent.db", "--json", cwd=folder).stdout
    return json.loads(datasets)
