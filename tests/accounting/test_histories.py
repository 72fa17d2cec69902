"""Histories that may be composed, and every accountant's answer to those that may not."""

import itertools
import math
from collections.abc import Callable

import pytest

from fedprivacy.accounting import composition, gdp, pld, rdp
from fedprivacy.accounting.histories import executed_events, extend_history, without
from fedprivacy.values.events import (
    FixedSizeSampledGaussian,
    History,
    NeighbouringRelation,
    PoissonSampledGaussian,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
)

EVENT = PoissonSampledGaussian(0.01, 1.0)
REPLACE, ZERO_OUT = NeighbouringRelation.REPLACE_ONE, NeighbouringRelation.ZERO_OUT
OTHER_RELATION = PoissonSampledGaussian(0.01, 1.0, ZERO_OUT)

Accountant = Callable[[History, float], float]
OF_GAUSSIANS = {
    "basic": composition.basic,
    "advanced": composition.advanced,
    "gdp": gdp.epsilon,
}
ACCOUNTANTS = {"pld": pld.epsilon, "rdp": rdp.epsilon, **OF_GAUSSIANS}
every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS.values(), ids=ACCOUNTANTS)


@every_accountant
def test_relations_are_never_mixed(accountant: Accountant) -> None:
    with pytest.raises(ValueError, match=r"add-or-remove-one and zero-out"):
        accountant({EVENT: 1, OTHER_RELATION: 1}, 1e-5)
    for mixed in (
        {RandomizedResponse(2, 0.5): 1, PoissonSampledGaussian(0.1, 1.0): 1},
        {FixedSizeSampledGaussian(1, 2, 1.0): 1, TruncatedPoissonSampledGaussian(0.1, 1.0, 10, 5): 1},
    ):
        with pytest.raises(ValueError, match="neighbouring relations"):
            accountant(mixed, 1e-5)


@every_accountant
def test_delta_is_a_probability(accountant: Accountant) -> None:
    for history, delta in itertools.product(({EVENT: 1}, {}), (0.0, 1.0, 1.5, -1e-5, math.nan)):
        with pytest.raises(ValueError, match="delta is"):
            accountant(history, delta)


@every_accountant
def test_an_empty_history_costs_nothing(accountant: Accountant) -> None:
    assert accountant({}, 1e-5) == accountant({EVENT: 0}, 1e-5) == 0.0


@every_accountant
def test_replacing_a_record_moves_the_sum_twice_as_far_and_to_zero_it_out_does_not(
    accountant: Accountant,
) -> None:
    replaced = accountant({PoissonSampledGaussian(1.0, 4.0, REPLACE): 5}, 1e-5)
    assert replaced == pytest.approx(accountant({PoissonSampledGaussian(1.0, 2.0): 5}, 1e-5), rel=1e-9)
    assert accountant({EVENT: 100}, 1e-5) == accountant({OTHER_RELATION: 100}, 1e-5)


@pytest.mark.parametrize("accountant", OF_GAUSSIANS.values(), ids=OF_GAUSSIANS)
def test_an_accountant_of_gaussians_says_which_one_knows_more(accountant: Accountant) -> None:
    with pytest.raises(ValueError, match="use `pld`"):
        accountant({RandomizedResponse(3, 0.5): 1}, 1e-5)


def test_more_steps_after_a_past_are_checked_in_the_same_way() -> None:
    with pytest.raises(ValueError, match="neighbouring relations"):
        pld.epsilons(EVENT, [1], 1e-5, past={OTHER_RELATION: 1})
    with pytest.raises(ValueError, match="neighbouring relations"):
        extend_history({OTHER_RELATION: 1}, EVENT, 0)  # even before the first step
    with pytest.raises(ValueError, match="delta is"):
        pld.epsilons(EVENT, [1], 0.0)
    with pytest.raises(ValueError, match="steps is -1"):
        pld.epsilons(EVENT, [3, -1], 1e-5, past={EVENT: 5})


def test_the_past_grows_and_stays_what_it_was() -> None:
    past = {EVENT: 3}
    assert executed_events(past | {PoissonSampledGaussian(0.5, 0.1): 0}) == past
    for count in (-1, 1.5):
        with pytest.raises(ValueError, match="integer of at least 0"):
            executed_events({EVENT: count})  # type: ignore[dict-item]
    assert extend_history(past, EVENT, 4) == {EVENT: 7}
    assert extend_history(None, EVENT, 4) == {EVENT: 4}
    assert extend_history(past, EVENT, 0) == {EVENT: 3}
    assert past == {EVENT: 3}
    both = {EVENT: 7, PoissonSampledGaussian(0.5, 0.1): 2, PoissonSampledGaussian(0.5, 0.3): 4}
    own = {EVENT: 3, PoissonSampledGaussian(0.5, 0.1): 2}
    assert without(both, own) == {EVENT: 4, PoissonSampledGaussian(0.5, 0.3): 4}
