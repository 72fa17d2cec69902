"""The example scripts run, and say what they promise."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "simulations"


SAID = {
    "cancer.py": ["run 2: accuracy 0.9", "without any privacy: accuracy 0.9", "In plain words", "factor of e^2.00"],
    "averaging.py 40": ["The truth: 170 patients", "Refused after 7 answers", "7 answers,", "then no more"],
}
MORE_SAID = {
    "digits.py": ["round 60: accuracy 0.9", "largest epsilon 2.99", "client-9"],
    "hospitals.py": ["stayed away mean of age", "one account. Accuracy 0.7", "by a private answer accuracy 0.7"],
    "stragglers.py": [
        *("60 rounds in 5.1 hours", "60 rounds in 1.5 hours"),
        *("epsilon 3.68 on average", "epsilon 4.60 on average"),
    ],
    "personal_budgets.py": [
        "for all: accuracy 63.",
        "by size: accuracy 7",
        "by noise: accuracy 9",
        "10 clients of budget 8",
    ],
    "unlike_clients.py": [
        *("epsilon 0.25 together (fedavg) error 0.53", "in between (mr-mtl) error 0.24"),
        *("alone (local) error 0.11", "spent 3.99"),
    ],
}
"""Scripts that take longer."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [*SAID, *(pytest.param(script, marks=pytest.mark.soak) for script in MORE_SAID)])
@pytest.mark.usefixtures("undrawn")
def test_it_runs_and_says(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", script.split())
    runpy.run_path(str(SCRIPTS / script.split()[0]), run_name="__main__")
    printed = " ".join(capsys.readouterr().out.split())
    for words in (SAID | MORE_SAID)[script]:
        assert words in printed, printed


@pytest.mark.soak
def test_the_one_over_seeds_is_a_reproduction(tmp_path):
    source = f"{SCRIPTS / 'over_seeds.py'}:Together"
    command = [sys.executable, "-m", "simulations.reproduce", source, "--seeds", "1", "--json", "--out", tmp_path]
    told = json.loads(subprocess.check_output(command, cwd=SCRIPTS.parent))
    together, alone = told["rows"]
    assert told["met"] and together["mean"] > 0.9 and 0.85 < alone["mean"] < 0.97
    assert 0.9 < together["epsilon"] <= 1.0 and 0.9 < alone["epsilon"] <= 1.0
