"""What a user may get wrong on the command line: each ends with one clear text, the right exit code and no traceback.

One command for each kind of answer: every setting's words are in `tests/runs/test_configuration.py`, those of the
calculator, the doctor and deployments beside their commands, and tasks that do not work in `test_bad_tasks`. Every line
is a command as it is typed, and what its answer names: the setting, the value, the remedy.
"""

import shlex

import pytest

from tests.commands.running import fedprivacy

SETTINGS = {
    "simulate --task nosuch": ("task is 'nosuch'", "choose one of digits, cancer", "path/to/file.py:name"),
    "simulate --task missing.py:Mine": ("missing.py", "does not exist", "give its path"),
    "simulate --task nosuch.module:Mine": ("module 'nosuch.module'", "cannot be imported"),
    "simulate --epsilon nan": ("epsilon is nan", "give a number"),
    "simulate --epsilon 1e-9": ("epsilon is 1e-09", "noise multiplier of 10000", "choose a larger epsilon"),
    "simulate --epsilon inf": ("epsilon is inf", "give a noise-multiplier"),
    "simulate --rounds -3": ("rounds is -3", "choose"),
    "simulate --rounds 1.5": ("--rounds", "'1.5'", "integer"),
    "simulate --rounds": ("--rounds", "requires an argument"),
    "simulate --clients 5000": ("shard() for client-0000 fails", "partitions"),
    "simulate --clipping none": ("clipping is 'none'", "choose one of flat, per-layer"),
    "simulate --batch-size 32 --sampling-rate 0.1": ("batch-size and sampling-rate", "give one of them"),
    "simulate --optimizer adam": ("optimizer is 'adam'", "give a learning-rate"),
    "simulate --strategy missing.py:Mine": ("missing.py", "does not exist", "give its path"),
    "simulate --server-momentum 0.9": ("server-momentum is 0.9", "leave it open, or choose fedavgm"),
    "simulate --cohort-size 11": ("cohort-size is 11, and clients is 10", "give at most as many"),
    "simulate --over-selection 1.3": ("over-selection is 1.3", "no cohort-size", "give one"),
    "simulate --speeds missing.csv": ("speeds names file 'missing.csv'", "No such file", "give its path"),
    "simulate --deadline 0.5": ("deadline is 0.5, and the fastest client takes 1 ", "give a later deadline"),
    "simulate --availability always": ("availability is 'always'", "give diurnal:SHARE"),
    "simulate --buffer-size 4": ("buffer-size is 4 and concurrency is open", "need both"),
    "simulate --device cuda:77": ("device is 'cuda:77'", "use auto or cpu"),
    "simulate --engine spark": ("--engine", "'spark'", "'in-process', 'ray'"),
    "simulate --trackers nosuch": ("trackers names 'nosuch'", "tensorboard, mlflow, wandb"),
    "simulate --name a/b": ("name is 'a/b'", "give a folder's name of letters, digits"),
    "simulate --name ..": ("name is '..'", "give a folder's name"),
    "simulate --note '\x1b[2J'": ("note holds characters that cannot be printed", "take them out"),
    "plan --tags 'a,\x07'": ("tags holds characters that cannot be printed", "take them out"),
    "simulate --help-al": ("--help-al", "--help-all"),
    "recommend cancer --shard-size many": ("--shard-size", "'many' is not a valid float", "give a number"),
    "recommend cancer --shard-size nan": ("shard size is nan", "give a number of records"),
    "reproduce digits --seeds many": ("--seeds", "'many' is not a valid integer", "give a whole number"),
    "reproduce digits --metric": ("--metric", "requires an argument"),
    "simulate --nosuch 3": ("--nosuch",),
    "simulate extra": ("extra",),
    "nosuch": ("nosuch",),
    "plan --epsilon 1 --spend 2": (
        "spend is 2.0, and epsilon, the budget of all runs, is 1.0",
        "give a spend of at most",
    ),
    "plan --rounds 0 --clients 0": ("rounds is 0", "clients is 0"),
    "deploy app mine --clients 0": ("--clients", "0"),
    "dashboard --port 70000": ("--port", "70000", "65535"),
}

FILES = {
    "simulate --strategy broken.py:Mine": ("strategy", "broken.py", "SyntaxError", "line 1"),
    "simulate --strategy three.py:T": ("'three.py:T', which makes a value of type int", "let it make"),
    "simulate --out broken.py": ("out is 'broken.py', which is a file; name a folder.",),
    "simulate --out broken.py/run": ("out is 'broken.py/run', which cannot be written: Not a directory",),
    "simulate --out /proc/nowhere": ("out is '/proc/nowhere', which cannot be written: No such file or directory",),
    "report .": ("holds no run",),
    "compare kept": ("1 runs cannot be compared", "name 2 to 8 folders"),
    "compare kept kept --metric auc": ("metric is 'auc', which none of the runs has measured", "choose from accuracy"),
    "compare kept kept --out broken.py": ("out is 'broken.py', which is a file", "name a folder"),
    "compare kept kept --out broken.py/in": ("out is 'broken.py/in', which cannot be written", "name another folder"),
    "reproduce digits --out broken.py": ("out is 'broken.py', which is a file", "name a folder"),
    "reproduce digits --out /proc/nowhere": ("out is '/proc/nowhere', which cannot be written", "name another folder"),
    "runs remove broken.py --yes": ("'broken.py' holds no run", "name a folder that a run wrote to"),
    "runs error broken.py": ("no run in 'broken.py' has failed", "name another folder"),
    "simulate --out kept": ("out is 'kept'", "already holds a run", "name a new folder"),
    "simulate --resume nowhere": ("'nowhere' holds no run", "name a folder"),
    "simulate --resume kept --epsilon 5": ("epsilon is 5", "leave epsilon open"),
    "simulate --ledger mysql://x/y": ("ledger is 'mysql://x/y'", "sqlite:///"),
    "simulate --ledger sqlite:///broken.py": ("broken.py", "not a database"),
    "simulate --ledger sqlite:////nowhere/at/all/ledger.db": ("/nowhere/at/all",),
    "simulate --ledger postgresql+psycopg://nobody@localhost:1/x": ("localhost:1/x", "refused"),
    "simulate --signing-key broken.py": ("signing-key is 'broken.py'", "no readable private key"),
    "dashboard --store nowhere": ("nowhere", "name the ledger of a run"),
    "dashboard --tls-certificate nowhere.pem": ("--tls-key", "give both"),
    "ledger show --ledger nowhere.db": ("nowhere.db", "name the one that a run wrote"),
    "ledger show --ledger broken.py": ("broken.py", "not a database"),
    "ledger show --ledger mysql://x/y": ("ledger is 'mysql://x/y'", "sqlite:///"),
    "ledger verify nowhere.jsonl": ("nowhere.jsonl",),
    "ledger import nowhere.jsonl --ledger new.db": ("nowhere.jsonl",),
    "ledger export out.jsonl --ledger nowhere.db": ("nowhere.db", "name the one that a run wrote"),
    "ledger reconcile a nowhere.jsonl --ledger kept/ledger.db": ("nowhere.jsonl",),
    "ledger rebind a nowhere.pub --ledger kept/ledger.db": ("nowhere.pub",),
    "ledger budget set nosuch --epsilon 1 --reason x --ledger kept/ledger.db": ("'nosuch'", "'fedprivacy ledger show'"),
    "ledger budget set a --epsilon 1 --ledger kept/ledger.db": ("--reason",),
    "ledger upgrade --ledger broken.py": ("broken.py", "not a database"),
    "guard show nowhere.log": ("nowhere.log", "does not exist"),
    "guard show broken.py": ("broken.py is damaged", "docs/how-to/ledger.md"),
    "guard show .": ("'.' is a directory",),
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
    rounds = folder / "kept" / "rounds.jsonl"
    before = sorted(folder.iterdir()), rounds.read_bytes()
    printed = fedprivacy(*shlex.split(command), cwd=folder, code=2).output
    for words in (SETTINGS | FILES)[command]:
        assert words in printed, printed
    assert "Traceback" not in printed
    assert "waiting for clients" not in printed or "/proc" in command, "nothing seems to begin"
    assert (sorted(folder.iterdir()), rounds.read_bytes()) == before, "a mistake leaves nothing behind"
