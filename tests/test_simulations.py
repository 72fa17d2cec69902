"""The example scripts run, and say what they promise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.running import fedprivacy

SCRIPTS = Path(__file__).parent.parent / "simulations"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("digits.py", ["round  60: accuracy 0.9", "largest epsilon 2.99", "client-9"]),
        (
            "cancer.py",
            ["run 2: accuracy 0.9", "without any privacy: accuracy 0.9", "In plain words", "factor of e^2.00"],
        ),
        ("hospitals.py", ["stayed away mean of age", "one account. Accuracy 0.7", "by a private answer accuracy 0.7"]),
        (
            "stragglers.py",
            [
                *("60 rounds in 5.1 hours", "60 rounds in 1.5 hours", "60 rounds in 0.8 hours"),
                *("epsilon 3.68 on average", "epsilon 4.60 on average", "epsilon 3.78 on average"),
            ],
        ),
        (
            "personal_budgets.py",
            ["for all: accuracy 63.", "by size: accuracy 7", "by noise: accuracy 9", "10 clients of budget 8"],
        ),
        (
            "unlike_clients.py",
            [
                *("epsilon 0.25 together (fedavg) error 0.53", "in between (mr-mtl) error 0.24"),
                *("alone (local) error 0.11", "spent 3.99"),
            ],
        ),
        ("averaging.py 40", ["The truth: 170 patients", "Refused after 7 answers", "7 answers,", "then no more"]),
    ],
)
def test_it_runs_and_says(script, words, tmp_path):
    name, *arguments = script.split()
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert all(word in " ".join(run.stdout.split()).replace("round 60", "round  60") for word in words)


@pytest.mark.exhaustive
def test_the_one_over_seeds_is_a_reproduction(tmp_path):
    source = f"{SCRIPTS / 'over_seeds.py'}:Together"
    told = json.loads(fedprivacy("reproduce", source, "--seeds", 1, "--json", cwd=tmp_path).stdout)
    together, alone = told["rows"]
    assert told["met"] and together["mean"] > 0.9 and 0.85 < alone["mean"] < 0.97
    assert 0.9 < together["epsilon"] <= 1.0 and 0.9 < alone["epsilon"] <= 1.0
