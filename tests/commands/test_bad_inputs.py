"""What a user may get wrong on the command line: each ends with one clear text, the right exit code and no traceback.

One command for each kind of answer: every setting's words are in `tests/runs/test_configuration.py`, those of
ledgers in `tests/ledger/test_commands.py`, others beside their commands, and tasks that do not work in
`test_bad_tasks`. Every line is a command as it is typed, and what its answer names: the setting, the value, the remedy.
"""

import shlex

import pytest

from fedprivacy.runs.records.folder import read_lines
from tests.commands.running import fedprivacy

SETTINGS = {
    "simulate --task nosuch": ("task is 'nosuch'", "choose one of digits, cancer", "path/to/file.py:name"),
    "simulate --epsilon nan": ("epsilon is nan", "give a number"),
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
}

FILES = {
    "simulate --strategy three.py:T": ("'three.py:T', which makes a value of type int", "let it make"),
    "report .": ("holds no run",),
    "compare kept kept --metric auc": ("metric is 'auc', which none of the runs has measured", "choose from accuracy"),
    "compare kept kept --out broken.py": ("out is 'broken.py', which is a file", "name a folder"),
    "simulate --out kept": ("out is 'kept'", "already holds a run", "name a new folder"),
    "simulate --ledger sqlite:////nowhere/at/all/ledger.db": ("/nowhere/at/all",),
    "simulate --signing-key broken.py": ("signing-key is 'broken.py'", "no readable private key"),
    "dashboard --store nowhere": ("nowhere", "name the ledger of a run"),
    "guard show nowhere.log": ("nowhere.log", "does not exist"),
    "guard show broken.py": ("broken.py is damaged", "docs/how-to/ledger.md"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where commands are typed: a file that is no Python, no ledger and no key, one that makes a number, and a run."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "broken.py").write_text("import (\n")
    (folder / "three.py").write_text("def T(): return 3\n")
    fedprivacy("simulate", "--task", "cancer", "--clients", "2", "--rounds", "1", "--out", "kept", cwd=folder)
    return folder


@pytest.mark.parametrize("command", [*SETTINGS, *FILES])
def test_a_mistake_ends_in_one_clear_text(folder, command):
    before = sorted(folder.iterdir()), read_lines(folder / "kept")
    printed = fedprivacy(*shlex.split(command), cwd=folder, code=2).output
    for words in (SETTINGS | FILES)[command]:
        assert words in printed, printed
    assert "Traceback" not in printed
    assert "waiting for clients" not in printed or "/proc" in command, "nothing seems to begin"
    assert (sorted(folder.iterdir()), read_lines(folder / "kept")) == before, "a mistake leaves nothing behind"
