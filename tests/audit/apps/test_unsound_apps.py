"""Training code with one known fault each: the gate that looks there fails, and says in words what is wrong."""

import re

import pytest

from fedprivacy.audit.apps import audit_app
from tests.audit.apps import unsound
from tests.audit.apps.judging import check_named, judged
from tests.audit.apps.turns import in_turn

ONE_OF_EACH_GATE = (
    unsound.RateOfTheFederation,
    unsound.FixedSize,
    unsound.NoClipping,
    unsound.HalfTheNoise,
    unsound.LateLayer,
    unsound.Plateau,
    unsound.NoiseFromTheClock,
    unsound.MaskFrom32Bits,
    unsound.ExactCount,
)


@pytest.mark.parametrize(("bad", "seed"), in_turn(unsound.BAD, *ONE_OF_EACH_GATE))
def test_a_known_fault_is_named(bad, seed):
    check_named(bad, seed)


@pytest.mark.exhaustive
def test_the_reason_says_by_how_much():
    """Four parameters, each clipped to the whole norm: together twice as long."""
    assert 1.5 < judged(unsound.PerLayerAtTheWholeNorm, "replay").statistic <= 2.0 + 1e-3


@pytest.mark.exhaustive
def test_steps_that_are_left_out_end_no_audit():
    assert {gate.name for gate in audit_app(unsound.SkipsEmptyBatches, "skips", seed=0).failed} == {"release"}


@pytest.mark.exhaustive
def test_a_field_is_told_of_once():
    """However many neighbours change it."""
    (only,) = judged(unsound.TrainingLoss, "release").reasons
    assert "'metrics.train_loss'" in only


def test_shuffled_batches_are_told_what_is_guaranteed_without_amplification():
    (reason, *_) = judged(unsound.Shuffled, "sampling").reasons
    guaranteed, claimed = (
        float(n) for n in re.search(r"epsilon of (\S+) is guaranteed.* cost (\S+)\.", reason).groups()
    )
    assert claimed < guaranteed == pytest.approx(4.38, abs=0.01)  # of one Gaussian release with noise 1, delta 1e-5
