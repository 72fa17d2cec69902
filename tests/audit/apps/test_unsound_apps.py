"""Training code with one known fault each: the gate that looks there fails, and says in words what is wrong."""

import re

import pytest

from tests.audit.apps import unsound
from tests.audit.apps.judging import check_named, judged
from tests.audit.apps.turns import in_turn

ONE_OF_EACH_GATE = (
    unsound.StepsOfOneEpoch,
    unsound.Shuffled,
    unsound.SameNoiseEveryStep,
    unsound.Plateau,
    unsound.SampleFromTheClock,
)


@pytest.mark.parametrize(("bad", "seed"), in_turn(unsound.BAD, *ONE_OF_EACH_GATE))
def test_a_known_fault_is_named(bad, seed):
    check_named(bad, seed)


def test_shuffled_batches_are_told_what_is_guaranteed_without_amplification():
    (reason, *_) = judged(unsound.Shuffled, "sampling").reasons
    guaranteed, claimed = (
        float(n) for n in re.search(r"epsilon of (\S+) is guaranteed.* cost (\S+)\.", reason).groups()
    )
    assert claimed < guaranteed == pytest.approx(4.38, abs=0.01)  # of one Gaussian release with noise 1, delta 1e-5
