"""Bounded numbers become whole steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.questions.lattice import STEPS, centred, in_steps, interval

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)


def test_numbers_are_between_minus_one_and_one_and_beyond_the_bounds_at_them():
    values = np.array([0.0, 60.0, 120.0, 30.0, -5.0, 500.0, np.nan])
    expected = [-1.0, 0.0, 1.0, -0.5, -1.0, 1.0, np.nan]
    assert np.array_equal(centred(values, 0.0, 120.0), expected, equal_nan=True)


@pytest.mark.parametrize("steps", [STEPS, 7])
def test_steps_are_whole_and_at_most_so_many(steps):
    values = np.linspace(-1.0, 1.0, 1001)
    found = in_steps(values, steps)
    assert found.dtype == np.int64 and found.min() == -steps and found.max() == steps
    assert np.abs(found - steps * values).max() <= 0.5


def test_an_interval_holds_its_lower_end_and_the_last_one_both_and_all_beyond():
    values = np.array([-9.0, 0.0, 0.99, 1.0, 4.99, 5.0, 9.0, np.nan])
    assert interval(values, 0.0, 5.0, 5).tolist() == [0, 0, 0, 1, 4, 4, 4]


@given(st.lists(FINITE, max_size=20), st.integers(1, 4096))
def test_every_number_is_in_one_interval_that_does_not_fall_with_it(values, count):
    with np.errstate(all="ignore"):
        places = interval(np.sort(np.array(values, dtype=np.float64)), -1e3, 1e3, count)
    assert len(places) == len(values) and all(0 <= place < count for place in places)
    assert np.all(np.diff(places) >= 0)
