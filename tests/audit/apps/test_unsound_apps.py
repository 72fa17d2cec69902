"""Training code with one known fault each: the gate that looks there fails, and says in words what is wrong."""

import pytest

from tests.audit.apps import unsound
from tests.audit.apps.turns import check_named, in_turn

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
