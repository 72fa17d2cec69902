"""Questions of a deployment's run: real processes, TLS, SuperNode authentication, loopback."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedprivacy.deploy.demo import Digits, run_demo
from fedprivacy.flower.client.node import GUARD
from fedprivacy.guard import Guard
from fedprivacy.ledger import Ledger
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.tasks.bundled import ARCHIVE
from fedprivacy.values.budget import PrivacyBudget

REPOSITORY = Path(__file__).parents[2]
BUDGET = {"epsilon": 3.0, "delta": 1e-4}
CLIENTS = ["hospital-0", "hospital-1"]


@pytest.mark.exhaustive
def test_hospitals_answer_what_their_own_configuration_allows(tmp_path):
    questions = "categories digit 0 1 2 3 4 5 6 7 8 9"
    out = run_demo(
        tmp_path,
        REPOSITORY,
        Digits(),
        clients=CLIENTS,
        run_config={"task": "digits", "questions": questions, "spend": 1.0, **BUDGET},
        node_config={**BUDGET, "questions": "categories", "question-columns": "digit", "smallest-cohort": 0.0},
    )
    answers = json.loads((out / "answers.json").read_text())
    counts = [row["value"] for row in answers["federation"] if row["figure"] != "other"]
    held = [np.load(out.parent / "data" / name / ARCHIVE)["labels"] for name in CLIENTS]
    truth = np.bincount(np.concatenate(held), minlength=10)
    error = max(row["error"] for row in answers["federation"])
    assert len(counts) == 10
    assert np.abs(counts - truth).max() < 5 * error  # of ten figures, once in 170,000 runs
    ledger = Ledger(f"sqlite:///{out / 'ledger.db'}")
    for name in CLIENTS:
        guard = Guard(out.parent / "data" / name / GUARD, PrivacyBudget(**BUDGET))
        assert sum(guard.history().values()) == 1
        assert guard.history() == dict(ledger.accounts([f"digits/{name}"])[f"digits/{name}"].history)
    assert len(verify_ledger(ledger).replay.charges) == len(CLIENTS)
