"""What a user may get wrong on the command line: each ends with one clear text, the right exit code and no traceback.

Tasks that do not work are in `test_bad_tasks`. Every line here is a command as it is typed, and what its answer names:
the setting, the value, the remedy.
"""

import shlex

import pytest

from tests.commands.running import fedprivacy

SETTINGS = {
    "simulate --task nosuch": ("task is 'nosuch'", "choose one of digits, cancer", "path/to/file.py:name"),
    "simulate --task missing.py:Mine": ("missing.py", "does not exist", "give its path"),
    "simulate --task nosuch.module:Mine": ("module 'nosuch.module'", "cannot be imported"),
    "simulate --epsilon 0": ("epsilon is 0", "choose"),
    "simulate --epsilon -1": ("epsilon is -1", "choose"),
    "simulate --epsilon nan": ("epsilon is nan", "give a number"),
    "simulate --epsilon abc": ("--epsilon", "'abc'", "float"),
    "simulate --epsilon 1e-9": ("epsilon is 1e-09", "noise multiplier of 10000", "choose a larger epsilon"),
    "simulate --epsilon inf": ("epsilon is inf", "give a noise-multiplier"),
    "simulate --delta 0": ("delta is 0", "choose"),
    "simulate --delta 1": ("delta is 1", "choose"),
    "simulate --rounds 0": ("rounds is 0", "choose"),
    "simulate --rounds -3": ("rounds is -3", "choose"),
    "simulate --rounds 1.5": ("--rounds", "'1.5'", "integer"),
    "simulate --rounds": ("--rounds", "requires an argument"),
    "simulate --local-steps 0": ("local-steps is 0", "choose"),
    "simulate --clients 0": ("clients is 0", "choose"),
    "simulate --clients 5000": ("shard() for client-0000 fails", "partitions"),
    "simulate --noise-multiplier 0": ("noise-multiplier is 0", "choose"),
    "simulate --noise-multiplier -1": ("noise-multiplier is -1", "choose"),
    "simulate --clipping-norm 0": ("clipping-norm is 0", "choose"),
    "simulate --clipping none": ("clipping is 'none'", "choose one of flat, per-layer"),
    "simulate --sampling-rate 0": ("sampling-rate is 0", "choose"),
    "simulate --sampling-rate 1.5": ("sampling-rate is 1.5", "choose"),
    "simulate --batch-size 32 --sampling-rate 0.1": ("batch-size and sampling-rate", "give one of them"),
    "simulate --batch-size 0 --noise-multiplier 1": ("batch-size is 0", "choose"),
    "simulate --optimizer lion": ("optimizer is 'lion'", "choose one of sgd, adam, adamw"),
    "simulate --optimizer adam": ("optimizer is 'adam'", "give a learning-rate"),
    "simulate --learning-rate 0": ("learning-rate is 0", "choose"),
    "simulate --learning-rate -1": ("learning-rate is -1", "choose"),
    "simulate --momentum 1": ("momentum is 1", "choose"),
    "simulate --momentum 0.9 --optimizer adam --learning-rate 0.1": ("momentum 0.9", "choose sgd"),
    "simulate --weight-decay -1": ("weight-decay is -1", "choose"),
    "simulate --ema-decay 2": ("ema-decay is 2", "choose"),
    "simulate --strategy fedmagic": ("strategy is 'fedmagic'", "choose one of fedavg"),
    "simulate --strategy missing.py:Mine": ("missing.py", "does not exist", "give its path"),
    "simulate --server-momentum 0.9": ("server-momentum is 0.9", "leave it open, or choose fedavgm"),
    "simulate --server-learning-rate 0.1": ("server-learning-rate is 0.1", "leave it open, or choose fedavgm"),
    "simulate --proximal-mu 1": ("proximal-mu is 1", "leave it open, or choose fedprox"),
    "simulate --strategy krum --clients 2": ("strategy is 'krum'", "give more clients"),
    "simulate --strategy fedprox --local-steps 1": ("strategy is 'fedprox'", "give local-steps"),
    "simulate --fraction-train 0": ("fraction-train is 0", "choose"),
    "simulate --fraction-train 1.1": ("fraction-train is 1.1", "choose"),
    "simulate --cohort-size 11": ("cohort-size is 11, and clients is 10", "give at most as many"),
    "simulate --cohort-sampling shuffled": ("cohort-sampling is 'shuffled'", "choose one of fixed, poisson"),
    "simulate --over-selection 1.3": ("over-selection is 1.3", "no cohort-size", "give one"),
    "simulate --over-selection 0.5 --cohort-size 3": ("over-selection is 0.5", "choose a number from 1 to 100"),
    "simulate --drop-out 1": ("drop-out is 1", "choose a number from 0 to 0.99"),
    "simulate --speeds fast": ("speeds is 'fast'", "give equal, lognormal:SIGMA"),
    "simulate --speeds missing.csv": ("speeds names file 'missing.csv'", "No such file", "give its path"),
    "simulate --deadline 0": ("deadline is 0", "choose"),
    "simulate --deadline 0.5": ("deadline is 0.5, and the fastest client takes 1 ", "give a later deadline"),
    "simulate --availability always": ("availability is 'always'", "give diurnal:SHARE"),
    "simulate --buffer-size 4": ("buffer-size is 4 and concurrency is open", "need both"),
    "simulate --buffer-size 4 --concurrency 11": ("concurrency is 11, and clients is 10", "give at most as many"),
    "simulate --buffer-size 4 --concurrency 9 --deadline 60": (
        "deadline is 60",
        "asynchronous rounds",
        "leave it open",
    ),
    "simulate --buffer-size 4 --concurrency 9 --engine ray": ("buffer-size is 4", "choose engine in-process"),
    "simulate --filter none": ("filter is 'none'", "choose one of fixed-mechanism, adaptive"),
    "simulate --seed -1": ("seed is -1", "choose"),
    "simulate --device tpu": ("device is 'tpu'", "choose auto, cpu, cuda"),
    "simulate --engine spark": ("--engine", "'spark'", "'in-process', 'ray'"),
    "simulate --trackers nosuch": ("trackers names 'nosuch'", "tensorboard, mlflow, wandb"),
    "simulate --node-timeout -1": ("node-timeout is -1", "choose"),
    "simulate --round-timeout 0": ("round-timeout is 0", "choose"),
    "simulate --nosuch 3": ("--nosuch",),
    "simulate extra": ("extra",),
    "nosuch": ("nosuch",),
    "plan --epsilon 0": ("epsilon is 0", "choose"),
    "plan --rounds 0 --clients 0": ("rounds is 0", "clients is 0"),
    "epsilon --sampling-rate 0.1": ("noise-multiplier is not set", "steps is not set", "--delta 1e-5"),
    "epsilon --sampling-rate 2 --noise-multiplier 1 --steps 10 --delta 1e-5": ("sampling_rate is 2", "choose"),
    "epsilon --sampling-rate .1 --noise-multiplier -1 --steps 10 --delta 1e-5": ("noise_multiplier is -1", "choose"),
    "epsilon --sampling-rate .1 --noise-multiplier 1 --steps 0 --delta 1e-5": ("steps is 0", "choose"),
    "epsilon --sampling-rate .1 --noise-multiplier 1 --steps 10 --delta 2": ("delta is 2", "choose"),
    "sigma --epsilon 0 --delta 1e-5 --sampling-rate 0.1 --steps 10": ("epsilon is 0", "choose"),
    "sigma --epsilon 1 --delta 1e-5 --sampling-rate 0.1 --steps -1": ("steps is -1", "choose"),
    "sigma --epsilon 1e-12 --delta 1e-5 --sampling-rate 0.1 --steps 9999": ("epsilon is 1e-12", "choose a larger"),
    "doctor nosuch": ("model is 'nosuch'", "choose one of digits"),
    "doctor digits --input-shape 3,x": ("input-shape is '3,x'", "for example 3,32,32"),
    "deploy app mine --task nosuch": ("task is 'nosuch'", "choose one of digits"),
    "deploy app 123": ("'123'", "begin the folder's name with a letter"),
    "deploy app mine --clients 0": ("--clients", "0"),
    "deploy keys --out keys --host 'not a host'": ("host is 'not a host'", "give a DNS name"),
    "deploy keys --out keys --host here --days 0": ("days is 0", "choose a whole number"),
    "deploy client-key ../evil": ("client is '../evil'", "choose 1 to 64 letters"),
    "deploy demo --epsilon -1": ("epsilon is -1", "choose"),
    "dashboard --port 70000": ("--port", "70000", "65535"),
}

FILES = {
    "simulate --task broken.py:Mine": ("broken.py", "SyntaxError", "line 1"),
    "simulate --strategy broken.py:Mine": ("strategy", "broken.py", "SyntaxError", "line 1"),
    "simulate --out broken.py": ("broken.py",),
    "simulate --out /proc/nowhere": ("/proc/nowhere",),
    "simulate --out kept": ("out is 'kept'", "already holds a run", "name a new folder"),
    "simulate --resume nowhere": ("'nowhere' holds no run", "name a folder"),
    "simulate --resume kept --epsilon 5": ("epsilon is 5", "leave epsilon open"),
    "simulate --ledger mysql://x/y": ("ledger is 'mysql://x/y'", "sqlite:///"),
    "simulate --ledger sqlite:///broken.py": ("broken.py", "not a database"),
    "simulate --ledger sqlite:////nowhere/at/all/ledger.db": ("/nowhere/at/all",),
    "simulate --ledger postgresql+psycopg://nobody@localhost:1/x": ("localhost:1/x", "refused"),
    "simulate --signing-key broken.py": ("signing-key is 'broken.py'", "no readable private key"),
    "epsilon --history nowhere.json --delta 1e-5": ("nowhere.json cannot be read", "name a file"),
    "epsilon --history broken.py --delta 1e-5": ("broken.py, line 1", "no JSON"),
    "sigma --past nowhere --epsilon 1 --delta 1e-5 --sampling-rate 0.1 --steps 9": ("nowhere cannot be read", "name a"),
    "doctor missing.py:Mine": ("missing.py", "does not exist"),
    "doctor broken.py:Mine": ("broken.py", "SyntaxError"),
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
    "deploy app kept": ("'kept' is not empty", "name a new folder"),
    "deploy app mine --task broken.py:Mine": ("broken.py", "SyntaxError"),
    "deploy keys --out broken.py --host here": ("broken.py",),
    "deploy client-key here --out /proc/nowhere": ("/proc/nowhere",),
    "deploy signing-key broken.py": ("broken.py", "no readable private key"),
    "deploy demo --app nowhere": ("'nowhere' holds no Flower app", "fedprivacy deploy app"),
    "deploy demo --data nowhere": ("data is 'nowhere'", "a folder there"),
    "deploy demo --out broken.py": ("broken.py",),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where commands are typed: a file that is no Python, no ledger and no key; and the folder of a run."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "broken.py").write_text("import (\n")
    fedprivacy("simulate", "--task", "cancer", "--clients", "2", "--rounds", "1", "--out", "kept", cwd=folder)
    return folder


@pytest.mark.parametrize("command", [*SETTINGS, *FILES])
def test_a_mistake_ends_in_one_clear_text(folder, command):
    before = sorted(folder.iterdir())
    printed = fedprivacy(*shlex.split(command), cwd=folder, code=2).output
    for words in (SETTINGS | FILES)[command]:
        assert words in printed, printed
    assert "Traceback" not in printed
    assert sorted(folder.iterdir()) == before, "a mistake leaves nothing behind"
