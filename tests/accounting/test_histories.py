import pytest

from fedprivacy.accounting import pld, rdp
from fedprivacy.accounting.histories import checked, extended, untruncated
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.01, 1.0)
OTHER_RELATION = PoissonSampledGaussian(0.01, 1.0, NeighbouringRelation.ZERO_OUT)


def test_events_that_never_ran_are_left_out() -> None:
    assert checked({EVENT: 3, PoissonSampledGaussian(0.5, 0.1): 0}) == {EVENT: 3}


def test_the_past_grows_and_stays_what_it_was() -> None:
    past = {EVENT: 3}
    assert extended(past, EVENT, 4) == {EVENT: 7}
    assert extended(None, EVENT, 4) == {EVENT: 4}
    assert extended(past, EVENT, 0) == {EVENT: 3}
    assert past == {EVENT: 3}


def test_whole_samples_are_left_as_they_are() -> None:
    assert untruncated({EVENT: 3}) == ({EVENT: 3}, 0.0)
    assert untruncated({}) == ({}, 0.0)


@pytest.mark.parametrize("count", [-1, 1.5])
def test_counts_that_are_no_counts_are_refused(count: float) -> None:
    with pytest.raises(ValueError, match="integer of at least 0"):
        checked({EVENT: count})  # type: ignore[dict-item]


def test_two_neighbouring_relations_are_never_composed() -> None:
    mixed = {EVENT: 1, OTHER_RELATION: 1}
    for compose in (lambda: rdp.epsilon(mixed, 1e-5), lambda: pld.epsilon(mixed, 1e-5)):
        with pytest.raises(ValueError, match=r"add-or-remove-one and zero-out"):
            compose()
    with pytest.raises(ValueError, match="neighbouring relations"):
        pld.epsilons(EVENT, [1], 1e-5, past={OTHER_RELATION: 1})
    with pytest.raises(ValueError, match="neighbouring relations"):
        extended({OTHER_RELATION: 1}, EVENT, 0)  # even before the first step


def test_both_relations_cost_the_same() -> None:
    assert pld.epsilon({EVENT: 100}, 1e-5) == pld.epsilon({OTHER_RELATION: 100}, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_delta_is_a_probability(delta: float) -> None:
    for compute in (lambda: rdp.epsilon({EVENT: 1}, delta), lambda: pld.epsilon({EVENT: 1}, delta)):
        with pytest.raises(ValueError, match="delta is"):
            compute()
    with pytest.raises(ValueError, match="delta is"):
        pld.epsilons(EVENT, [1], delta)


def test_negative_step_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="steps is -1"):
        pld.epsilons(EVENT, [3, -1], 1e-5, past={EVENT: 5})
