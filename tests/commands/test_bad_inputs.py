"""What a user may get wrong on the command line: each ends with one clear text, the right exit code and no traceback.

One command for each kind of answer: every setting's words are in `tests/runs/test_configuration.py`, those of
ledgers in `tests/ledger/test_commands.py`. Every line is a command as it is typed, and what its answer names: the
setting, the value, the remedy. Of a task that does not work it says which method fails, for whom, in which line.
"""

import shlex
import textwrap

import pytest

from fedprivacy._support.random_state import RandomState
from fedprivacy.flower.simulated.trial import try_task
from fedprivacy.runs.records.folder import read_lines
from fedprivacy.runs.settings.configuration import resolve
from fedprivacy.tasks import load_task
from fedprivacy.tasks.loader import open_task
from tests.audit.gates.host import home_of
from tests.commands.running import fedprivacy, unwrapped

TRAINING = "--sampling-rate 0.01 --noise-multiplier 1 --steps 1000"
CALCULATED = f"{TRAINING} --delta 1e-5"
SETTINGS = {
    "simulate --epsilon 1e-9": ("epsilon is 1e-09", "noise multiplier of 10000", "choose a larger epsilon"),
    "simulate --speeds missing.csv": ("speeds names file 'missing.csv'", "No such file", "give its path"),
    "simulate --device cuda:77": ("device is 'cuda:77'", "use auto or cpu"),
    "simulate --name a/b": ("name is 'a/b'", "give a folder's name of letters, digits"),
    "simulate --note '\x1b[2J'": ("note holds characters that cannot be printed", "take them out"),
    "simulate -q -v": ("quiet and verbose are both on", "give one of them"),
    "recommend cancer --shard-size many": ("--shard-size", "'many' is not a valid float", "give a number"),
    "recommend cancer --epsilon inf": ("epsilon is inf, and without a budget", "give a number"),
    "plan --no-privacy": ("privacy is off, so no epsilon bounds what the run costs",),
    "plan --rounds 0 --clients 0": ("rounds is 0", "clients is 0"),
    # the calculators
    "epsilon --steps 10": ("sampling-rate is not set", "noise-multiplier is not set", "delta is not set; add it, for"),
    f"epsilon {CALCULATED} --history h.json": ("history is 'h.json', and sampling-rate, noise-mult",),
    f"epsilon {CALCULATED} --rows-per-person 2 --accountant gdp": ("accountant is gdp, which does not apply",),
    f"epsilon {CALCULATED} --accountant moments": ("accountant is 'moments'; choose one of pld, rdp",),
    "sigma": ("epsilon is not set", "delta is not set", "sampling-rate is not set", "steps is not set"),
    "sigma --sampling-rate 0.01 --steps 9 --delta 1e-5 --epsilon 1 --past no.json": ("no.json cannot be read",),
    "risk": ("risk is of one thing; give either --epsilon with --delta, or a training, or --run, or --ledger.",),
    "risk --epsilon 3": ("delta is not set; add it",),
    "risk --epsilon 3 --delta 0": ("delta is 0.0; choose a probability in (0, 1)",),
    "risk --epsilon 3 --delta 1e-5 --rows-per-person 2": ("epsilon alone tells nothing of a person",),
    "risk --steps 3": ("sampling-rate is not set",),
    f"risk {CALCULATED} --rows-per-person 0": ("rows_per_person is 0; choose an integer from 1 to 1024.",),
    "risk --run nowhere": ("'nowhere' holds no run",),
    "risk --run nowhere --delta 1e-5": ("delta and relation are those of what was charged",),
    f"risk {CALCULATED} --figure x.gif": ("figure is 'x.gif'; choose a name that ends in one of .svg,",),
    f"risk {CALCULATED} --figure no/x.svg": ("figure is 'no/x.svg', which cannot be written",),
    # lists of runs, and audits
    "runs --setting =1": ("setting is '=1'; give KEY=VALUE",),
    "runs --status lost": ("status is 'lost'; choose one of running, finished, stopped, failed",),
    "runs error nowhere": ("no run in 'nowhere' has failed",),
    "audit --run nowhere": ("'nowhere' holds no run; name a folder",),
    "audit --run . --epsilon 2": ("epsilon is set beside run, which is audited with the settings that it had",),
    "audit --app theirs.py:Theirs --task cancer": ("task is set, and --app audits an app",),
    "audit --app theirs.py:Theirs --run .": ("run and app are both set",),
    "audit --app theirs": ("app is 'theirs'; write path/to/file.py:name",),
    "audit --app collections:Counter": ("a Counter; make it a subclass of fedprivacy.audit.apps.App",),
    "audit --node nowhere": ("node is 'nowhere', which cannot be read",),
    "audit --run-config run.toml": ("run-config is set without --node",),
}

SECRET = "correct-horse-battery-staple"
TEXTS = {
    "broken.py": "import (\n",
    "makes.py": "from torch import nn\n\nthree = 3\n\n\ndef T(): return 3\n\n\ndef failing(): return undefined\n",
    "list.toml": "rounds = [1, 2]",
    "table.toml": "[participation]\ncohort-size = 3",
    "key.toml": f"password = '{SECRET}'",
    "control.toml": '"\\u001b[2J" = 1',
    "large.toml": f"rounds = 0x{'f' * 5000}",
    "nested.toml": "rounds = " + "[" * 5000,
    "pem.toml": f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    "long.toml": "#" * (2**24 + 1),
}
"""Files that are there, by name."""

HOSTS = {
    "host": {},
    "keyless": {"key": "no.key"},
    "telling": {"disclose_shard_size": False},
    "empty": {"folder": "/nowhere"},
}
"""Folders with a node's configuration, and what is changed in it."""

FILES = {
    "simulate --strategy makes.py:T": ("'makes.py:T', which makes a value of type int", "let it make"),
    "report .": ("holds no run",),
    "compare kept kept --metric auc": ("metric is 'auc', which none of the runs has measured", "choose from accuracy"),
    "compare kept kept --out broken.py": ("out is 'broken.py', which is a file", "name a folder"),
    "simulate --out kept": ("out is 'kept'", "already holds a run", "name a new folder"),
    "simulate --ledger sqlite:////nowhere/at/all/ledger.db": ("/nowhere/at/all",),
    "simulate --out /proc/nowhere": ("which cannot be written: ", "name another folder"),
    "audit --out broken.py/found": ("out is 'broken.py/found', which cannot be written: Not a directory; name",),
    "simulate --signing-key broken.py": ("signing-key is 'broken.py'", "no readable private key"),
    "dashboard --store nowhere": ("nowhere", "name the ledger of a run"),
    "guard show nowhere.log": ("nowhere.log", "does not exist"),
    "guard show broken.py": ("broken.py is damaged", "docs/how-to/ledger.md"),
    "runs --store kept --sort acuracy": ("sort is 'acuracy'; choose epsilon, rounds",),
    "runs remove . --yes": ("'.' holds no run",),
    "risk --ledger kept/ledger.db --dataset z": ("knows no dataset 'z'",),
    "risk --ledger kept/ledger.db --figure x.svg": ("figure is of one dataset; name it with --dataset.",),
    "risk --ledger kept/ledger.db --rows-per-person 0": ("rows_per_person is 0",),
    # models
    "doctor nothing": ("model is 'nothing'; choose one of digits, cancer, or write path/to/file.py:Name",),
    "doctor makes.py:three": ("which makes a value of type int: no nn.Module, and a task has dataset",),
    "doctor makes.py:failing": ("of makes.py raises NameError: name 'undefined' is not defined",),
    "doctor torch.nn:Identity --input-shape 3,x": ("input-shape is '3,x'; give the sizes",),
    "doctor torch.nn:Identity --input-integers": ("give --input-shape",),
    # files of settings
    "simulate --config list.toml": ("error: list.toml: rounds is a list; give each setting one value",),
    "simulate --config table.toml": ("participation is a table", "without a [table] above it."),
    "simulate --config key.toml": ("error: key.toml: password is not a setting",),
    "simulate --config control.toml": ("the key '\\x1b[2J' is not a setting; take it out.",),
    "simulate --config large.toml": ("rounds is a whole number of more than 64 bits; give a smaller one.",),
    "simulate --config /dev/zero": ("error: config is '/dev/zero', which is no regular file; name a TOML file",),
    "simulate --config bytes": ("error: config is 'bytes', which is no text; name a TOML file",),
    "simulate --config nested.toml": ("which is no TOML; write each setting on a line",),
    "simulate --config pem.toml": ("which is no TOML: ",),
    "simulate --config long.toml": ("which is larger than 16,777,216 bytes; name a TOML file",),
    # nodes
    "audit --node host --clients 3": ("clients is set, and no client sees it; leave it out beside --node",),
    "audit --node host --run-config no.toml": ("run-config is 'no.toml', which cannot be read",),
    "audit --node host --noise-multiplier 0.2": ("this client takes no grant below 0.3",),
    "audit --node keyless": ("key is 'no.key', which is not there; 'fedprivacy deploy client-key NAME' makes it",),
    "audit --node telling": ("makes shard sizes public, and disclose-shard-size is false",),
    "audit --node empty": ("folder is '/nowhere', and the task does not work on the records there (FileNotFound",),
    "audit --node unnamed": ("it names no task, since the app brings it; name the app's own",),
    "audit --node changed": ("but the file's is",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where commands are typed: files, a run, and the hosts of nodes."""
    folder = tmp_path_factory.mktemp("typed")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "bytes").write_bytes(b"\xff\xfe")
    fedprivacy("simulate", "--task", "cancer", "--clients", "2", "--rounds", "1", "--out", "kept", cwd=folder)
    for name, changed in HOSTS.items():
        home_of(folder / name, **changed)
    for name, old, new in (("unnamed", "task", "# task"), ("changed", ":Sides", f":Sides@sha256:{'0' * 64}")):
        config = home_of(folder / name) / "node-config.toml"
        config.write_text(config.read_text().replace(old, new))
    return folder


@pytest.mark.parametrize("command", [*SETTINGS, *FILES])
def test_a_mistake_ends_in_one_clear_text(folder, command):
    before = sorted(folder.rglob("*")), read_lines(folder / "kept")
    done = fedprivacy(*shlex.split(command), cwd=folder, code=2)
    for words in (SETTINGS | FILES)[command]:
        assert words in unwrapped(done.stderr), done.output
    assert not done.stdout and SECRET not in done.stderr and "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr and "waiting for clients" not in done.stderr, "nothing seems to begin"
    assert (sorted(folder.rglob("*")), read_lines(folder / "kept")) == before, "a mistake leaves nothing behind"


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
    "arguments that are wanted": ({"body": "def __init__(self, folder): pass"}, "'folder'", "give each a default"),
    "a model that fails": ({"model": "raise RuntimeError('no weights')"}, "model() fails", "no weights", "line 5"),
    "no model": ({"model": "return None"}, "model() returns a NoneType", "return a torch.nn.Module"),
    "a model that mixes records": ({"model": "return torch.nn.BatchNorm1d(2)"}, "BatchNorm1d", "use GroupNorm"),
    "a model for other records": ({"model": "return torch.nn.Linear(3, 2)"}, "records of client-0, shape [2, 2]"),
    "a loss of the batch": ({"loss": "return outputs.mean()"}, "return one value for each record", "reduction='none'"),
    "numpy's arrays": ({"shard": "return fp.Shard(np.zeros((9, 2)), np.zeros(9))"}, "a ndarray", "as_tensor", "line 9"),
    "a split in fewer parts": (
        {"shard": f"{PARTS}[source.partition_id]", "body": "recipe = fp.Recipe(clients=4, delta=1e-3)"},
        *("shard() for client-2 fails", "list index out of range", "part 3 of 4", "lower clients"),
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
