"""A task that does not work is told of before anything is spent: which method, for whom, which line, and what to do."""

import textwrap

import pytest

from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.simulated.trial import try_task
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.tasks import load_task
from fedprivacy.tasks.loader import open_task
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
    "a class that wants arguments": (
        {"body": "def __init__(self, folder): pass"},
        "cannot be made without arguments",
        "'folder'",
        "give each a default",
    ),
    "a model that fails": ({"model": "raise RuntimeError('no weights')"}, "model() fails", "no weights", "line 5"),
    "no model": ({"model": "return None"}, "model() returns a NoneType", "return a torch.nn.Module"),
    "a model that mixes records": ({"model": "return torch.nn.BatchNorm1d(2)"}, "BatchNorm1d", "use GroupNorm"),
    "a model for other records": ({"model": "return torch.nn.Linear(3, 2)"}, "records of client-0, shape [2, 2]"),
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
    "a split in fewer parts": (
        {"shard": f"{PARTS}[source.partition_id]", "body": "recipe = fp.Recipe(clients=4, delta=1e-3)"},
        "shard() for client-2 fails",
        "list index out of range",
        "part 3 of 4",
        "lower clients",
    ),
    "an evaluation that fails": ({"evaluate": "open('test.csv')"}, "evaluate() fails", "test.csv", "line 11"),
    "a text for a metric": ({"evaluate": "return {'accuracy': 'good'}"}, "a str for 'accuracy'", "numbers by name"),
    "a metric without a name": ({"body": "metric = 7"}, "metric is 7", "give the name of one"),
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


@pytest.mark.exhaustive
def test_where_an_error_came_from_is_shown_on_request(tmp_path):
    task = written(tmp_path, evaluate="open('test.csv')")
    printed = fedprivacy("simulate", "--task", task, "--traceback", cwd=tmp_path, code=2).output
    assert "Traceback" in printed
    assert "open('test.csv')" in printed


def test_to_be_tried_draws_nothing(tmp_path):
    task = load_task(written(tmp_path, model="return torch.nn.Linear(2, 2 + 0 * int(np.random.rand()))"))
    config, before = resolve({}, task), RandomState.now()
    try_task(open_task(task=task), config, range(2))
    assert RandomState.now() == before


def test_a_metric_of_no_records_is_told_of_before_the_run(tmp_path, caplog):
    task = load_task(written(tmp_path, evaluate="return {'accuracy': torch.zeros(0).mean().item(), 'loss': 1.0}"))
    try_task(open_task(task=task), resolve({}, task), range(2))
    assert "evaluate() returns no number for accuracy; see that it has records" in caplog.text
