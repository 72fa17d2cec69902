"""Charges of the tests of a guard, their budget, and what a guard's file holds."""

import json

from fedprivacy.guard.log import EntryLog
from fedprivacy.guard.seals import folders_named_after
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.05, 1.2, NeighbouringRelation.ZERO_OUT)
BUDGET = PrivacyBudget(3.0, 1e-5)


def sealed_folder(file):
    """The folder of the updates that a guard's file has sealed."""
    (folder,) = folders_named_after(file)
    return folder


def key(round=1, attempt=0, run_id="run"):
    return Attempt(run_id, round, attempt)


def payloads(file):
    """The entries of a log."""
    log = EntryLog(file)
    with log.transaction():
        return log.entries


def kinds(file):
    return [json.loads(payload)["kind"] for payload in payloads(file)]
