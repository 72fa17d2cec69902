"""The number of steps that a run is charged, with and without local evaluation."""

import numpy as np
import pytest

from fedprivacy.values.series import Schedule


@pytest.mark.parametrize("local_steps", [1, 2, 7])
@pytest.mark.parametrize("every", [0, 1, 3, 100])
def test_the_sum_over_the_rounds_is_the_same_whichever_way_it_is_asked_for(local_steps, every):
    schedule = Schedule(local_steps, every)
    summed = np.cumsum([schedule.steps_in(number) for number in range(1, 61)])
    assert [schedule.steps_until(number) for number in range(1, 61)] == summed.tolist()
    assert schedule.steps_until(np.arange(1, 61)).tolist() == summed.tolist()
    for steps in range(int(summed[-1])):
        assert schedule.rounds_within(steps) == int((summed <= steps).sum())


def test_a_huge_number_of_steps_is_divided_at_once():
    schedule = Schedule(1, 1)
    assert schedule.rounds_within(2 * 10**12 + 1) == 10**12
