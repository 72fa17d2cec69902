"""Two versions of the code, compared by the bytes that twelve runs leave: `python -m tests.same_bytes OTHER_CHECKOUT`.

A change of structure changes nothing that a run computes. Both versions make the same runs, over engines, rounds and
algorithms, and an audit; every file that differs is named. Names of runs, times of day and durations do not count, nor
do files that only one version writes.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

CANCER = "--task cancer --seed 3 --rounds 4 --local-steps 3"
FEW = f"{CANCER} --clients 3"
MANY = f"{CANCER} --clients 120 --batch-size 2"
UNPREDICTABLE = "--speeds lognormal:1:9000"
RUNS = {
    "messages": f"{FEW} --epsilon 2",
    "ditto, adaptive": f"{FEW} --epsilon 2 --algorithm ditto --clipping adaptive",
    "scaffold": f"{FEW} --noise-multiplier 2 --epsilon 20 --algorithm scaffold --strategy fedavgm",
    "evaluated, spent early": f"{FEW} --noise-multiplier 3 --epsilon 1 --local-evaluation 2",
    "late": f"{CANCER} --clients 8 --epsilon 3 --cohort-size 3 --over-selection 1.5 --drop-out 0.2 {UNPREDICTABLE}",
    "fedprox": f"{FEW} --epsilon 2 --strategy fedprox --proximal-mu 0.5 --clipping per-layer",
    "cohort": f"{MANY} --epsilon 4 --strategy fedadam --fraction-train 0.5",
    "workers": f"{MANY} --epsilon 4 --algorithm mr-mtl --workers 2",
    "scaffold cohort": f"{MANY} --epsilon 4 --algorithm scaffold --fine-tuning-rounds 1 --weighting inverse-variance",
    "user level": f"{CANCER} --clients 20 --epsilon 5 --user-level-noise-multiplier 1 --fraction-train 0.5 "
    "--ema-decay 0.5",
    "baseline": f"{FEW} --no-privacy",
    "baseline cohort": f"{MANY} --no-privacy --algorithm ditto",
}
AUDIT = "--task cancer --seed 3 --clients 3 --json"
TEXTS = {".json", ".jsonl", ".html", ".csv"}
OWN = {"machine.json", "checkpoint.safetensors"}
"""Names of files that differ between two runs of one version."""

SECRET = r'"(statistic|p_value)": [\d.e-]+'
"""Figures of an audit that depend on a client's secret randomness, which no seed repeats."""


def command(checkout, folder, *arguments):
    """Run a command of a version of the code in a folder; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    whole = [sys.executable, "-m", "fedprivacy", *arguments]
    done = subprocess.run(whole, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stdout[-1000:], done.stderr[-1000:])
    return done.stdout


def without_chance(text):
    """A text in which names of runs are numbers, and times are no matter."""
    names = {}
    text = re.sub(r"[0-9a-f]{32,}", lambda found: names.setdefault(found[0], f"<{len(names)}>"), text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(\+\d\d:\d\d|Z)?", "<time>", text)
    return re.sub(r"\d+(\.\d+)? (ms|s|min|seconds?)\b|\"seconds\": [\d.e-]+", "<seconds>", text)


def charged(ledger):
    """The charges and budgets of a ledger, without names of runs and times."""
    connection = sqlite3.connect(ledger)
    rows = []
    for table in ("charges", "budgets"):
        columns = [column for _, column, *_ in connection.execute(f"pragma table_info({table})")]
        kept = [name for name in columns if not re.search("time|_at|signature|hash|digest|key|run_id|entry", name)]
        rows.append(sorted(map(repr, connection.execute(f"select {', '.join(kept)} from {table}"))))
    return rows


def rounds_in(checkout, home, folder):
    """A run's rounds as lines of JSON, which earlier versions wrote into files."""
    files = folder / "start.json", folder / "rounds.jsonl"
    if all(file.exists() for file in files):
        return "".join(file.read_text() for file in files)
    return command(checkout, home, "runs", "export", folder.name)


def left_by(checkout):
    """Everything that the runs and the audit of a version leave, by file."""
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        for name, options in RUNS.items():
            folder = home / name.replace(" ", "-").replace(",", "")
            command(checkout, home, "simulate", *options.split(), "--out", folder.name)
            found[f"{name}: rounds"] = without_chance(rounds_in(checkout, home, folder))
            for file in sorted(folder.rglob("*")):
                if file.name in OWN or not file.is_file():
                    continue
                if file.suffix in TEXTS:
                    found[f"{name}: {file.name}"] = without_chance(file.read_text())
                elif file.suffix == ".safetensors":
                    found[f"{name}: {file.name}"] = file.read_bytes()
            if (ledger := folder / "ledger.db").exists():
                found[f"{name}: ledger"] = charged(ledger)
        found["audit"] = re.sub(
            SECRET, r'"\1": <drawn>', without_chance(command(checkout, home, "audit", *AUDIT.split()))
        )
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "fedprivacy").is_dir():
        sys.exit(__doc__)
    other, ours = left_by(Path(sys.argv[1]).resolve()), left_by(Path(__file__).parent.parent)
    both = other.keys() & ours.keys()
    differing = sorted(name for name in both if other[name] != ours[name])
    only = sorted(other.keys() ^ ours.keys())
    print(json.dumps({"same": len(both) - len(differing), "differing": differing, "in one alone": only}, indent=2))
    sys.exit(bool(differing))
