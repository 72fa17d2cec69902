"""Training code with one known fault each: the gate that looks there fails, and says in words what is wrong."""

import re

import pytest

from fedprivacy.audit.apps import audit_app
from fedprivacy.audit.apps.audited import AuditedApp
from fedprivacy.audit.apps.auditor import GATES
from tests.audit.apps.turns import in_turn, named
from tests.audit.apps.unsound import BAD, GhostNorm, PerBatchClipping, Shuffled, SkipsEmptyBatches, TrainingLoss


def judged(app, gate, seed=0):
    audited = AuditedApp(app, app.__name__, seed=seed)
    audited.check()
    return GATES[gate](audited)


def check_named(bad, seed):
    gate = judged(bad.app, bad.gate, seed)
    assert not gate.passed
    assert re.search(bad.words, " ".join(gate.reasons)), gate.reasons


@pytest.mark.parametrize("bad", BAD, ids=named)
def test_a_known_fault_is_named(bad):
    check_named(bad, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("bad", "seed"), in_turn(BAD))
def test_a_known_fault_is_named_whatever_the_seed(bad, seed):
    check_named(bad, seed)


def test_the_reason_says_by_how_much():
    """Four uses of a layer, all alike: twice the norm, since the norm of a sum of four is four and not two."""
    assert 1.5 < judged(GhostNorm, "replay").statistic <= 2.0 + 1e-3
    assert judged(PerBatchClipping, "replay").statistic > 5.0


def test_steps_that_are_left_out_end_no_audit():
    assert {gate.name for gate in audit_app(SkipsEmptyBatches, "skips", seed=0).failed} == {"release"}


def test_a_field_is_told_of_once():
    """However many neighbours change it."""
    (only,) = judged(TrainingLoss, "release").reasons
    assert "'metrics.train_loss'" in only


def test_shuffled_batches_are_told_what_is_guaranteed_without_amplification():
    (reason, *_) = judged(Shuffled, "sampling").reasons
    guaranteed, claimed = (
        float(n) for n in re.search(r"epsilon of (\S+) is guaranteed.* cost (\S+)\.", reason).groups()
    )
    assert claimed < guaranteed == pytest.approx(4.38, abs=0.01)  # of one Gaussian release with noise 1, delta 1e-5
