"""Every accountant: what it refuses, and the divergences and classical bounds to 40 digits or more."""

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.accounting import composition, gdp, pld, rdp
from fedprivacy.accounting.histories import executed_events, extend_history, without
from fedprivacy.values.events import (
    FixedSizeSampledGaussian,
    History,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
)
from tests.accounting import oracles
from tests.accounting.marked import exhaustive, soak

EVENT = PoissonSampledGaussian(0.01, 1.0)
REPLACE, ZERO_OUT = NeighbouringRelation.REPLACE_ONE, NeighbouringRelation.ZERO_OUT
OTHER_RELATION = PoissonSampledGaussian(0.01, 1.0, ZERO_OUT)

Accountant = Callable[[History, float], float]
OF_GAUSSIANS = {"basic": composition.basic, "advanced": composition.advanced, "gdp": gdp.epsilon}
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
def test_replacing_a_record_moves_the_sum_twice_as_far_and_to_zero_it_out_does_not(accountant: Accountant) -> None:
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


# --- classical bounds, and the central limit ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-12, 0.5, 1.0, 1.0 + 1e-12, 40.0, 2000.0])
@pytest.mark.parametrize("q", [1e-9, 0.3, 1.0])
def test_amplification_matches_40_digits(epsilon: float, q: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(mpmath.mpf(epsilon)))
    ours, delta = composition.amplify(epsilon, 1e-3, q)
    assert ours == pytest.approx(float(exact), rel=1e-8)
    assert delta == pytest.approx(q * 1e-3)


@pytest.mark.parametrize("delta", [1e-3, *exhaustive(1e-9)])
def test_they_are_upper_bounds(delta: float) -> None:
    """The delta that is left at their epsilon, exactly, is at most the delta asked for."""
    history: History = {PoissonSampledGaussian(0.01, 1.0): 1000, PoissonSampledGaussian(0.5, 9.0): 20}
    for bound in (composition.basic(history, delta), composition.advanced(history, delta)):
        for remove in (True, False):
            assert oracles.composed_delta(history, bound, remove) <= delta
        assert bound >= pld.epsilon(history, delta) * 0.999
    for impossible in ((-0.1, delta, 0.1), (1.0, 1.5, 0.1), (1.0, delta, 0.0)):
        with pytest.raises(ValueError, match="choose a"):
            composition.amplify(*impossible)


@given(
    log_q=st.floats(-300, 0),
    log_s=st.floats(-307, 300),
    steps=st.integers(1, 2**31),
    log_delta=st.floats(-307, -0.001),
)
@pytest.mark.filterwarnings("error")
def test_no_overflow_and_no_nan(log_q: float, log_s: float, steps: int, log_delta: float) -> None:
    history = {PoissonSampledGaussian(10.0**log_q, 10.0**log_s): steps}
    basic, advanced = (bound(history, 10.0**log_delta) for bound in (composition.basic, composition.advanced))
    assert 0.0 <= advanced <= basic


@pytest.mark.parametrize("delta", [0.9, 1e-12, 1e-300])
@pytest.mark.parametrize("mu", [1e-6, 0.0099, 0.0101, 0.3, 500.0])
def test_the_gaussian_epsilon_matches_60_digits(mu: float, delta: float) -> None:
    ours = gdp.gaussian_epsilon(mu, delta)
    if ours == 0.0:
        assert oracles.gaussian_delta(mu, 0.0, 60) <= delta * (1 + 1e-12)
    else:
        above, below = (oracles.gaussian_delta(mu, ours * share, 60) for share in (1 - 1e-9, 1 + 1e-9))
        assert above > delta > below


def test_mu_is_that_of_the_central_limit_theorem() -> None:
    first, second = PoissonSampledGaussian(0.01, 1.0), PoissonSampledGaussian(0.1, 2.0)
    assert gdp.mu({first: 1000}) == pytest.approx(0.01 * math.sqrt(1000 * (math.e - 1)))
    assert gdp.mu({first: 50, second: 7}) == pytest.approx(math.hypot(gdp.mu({first: 50}), gdp.mu({second: 7})))


@pytest.mark.filterwarnings("error")
def test_extremes_of_gaussian_differential_privacy() -> None:
    assert gdp.epsilon({}, 1e-5) == 0.0
    assert gdp.mu({PoissonSampledGaussian(0.5, 1e-3): 1}) == math.inf
    assert gdp.epsilon({PoissonSampledGaussian(0.5, 1e-3): 1}, 1e-5) == math.inf
    assert gdp.epsilon({PoissonSampledGaussian(1.0, 1e-100): 1}, 1e-5) == pytest.approx(5e199)
    assert gdp.epsilon({PoissonSampledGaussian(1.0, 1e200): 1}, 1e-150) == 0.0


# --- Rényi divergences -----------------------------------------------------------------------------------------------


def exact_rdp(q: float, s: float, order: float) -> mpmath.mpf:
    """Divergence to 50 digits: the binomial sum for whole orders, adaptive quadrature for the others."""
    with mpmath.workdps(50):
        q, s, a = mpmath.mpf(q), mpmath.mpf(s), mpmath.mpf(order)
        if order == int(order):
            terms = (
                mpmath.binomial(int(a), k) * q**k * (1 - q) ** (a - k) * mpmath.expm1(k * (k - 1) / (2 * s**2))
                for k in range(2, int(a) + 1)
            )
            return mpmath.log1p(mpmath.fsum(terms)) / (a - 1)

        def integrand(t: mpmath.mpf) -> mpmath.mpf:
            u = q * mpmath.expm1(t / s - 1 / (2 * s**2))
            return mpmath.npdf(t) * ((1 + u) ** a - 1 - a * u)

        return mpmath.log1p(mpmath.quad(integrand, mpmath.linspace(-12, a / s + 12, 30))) / (a - 1)


OCTAVES = 1.0 + 2.0 ** (np.arange(-8, 21) / 2.0)


@pytest.mark.parametrize(
    ("q", "s", "order"),
    [
        (1e-9, 1.0, 2.0),
        (0.5, 0.3, 65.0),
        (1.0, 3.0, 9.0),
        *exhaustive((1e-6, 0.3, 1.0 + 2.0**-1.5), (0.9, 0.5, 1.0 + 2.0**-4), (1e-3, 2.5, 1.0 + 2.0**4.5)),
        *soak((0.3, 0.6, 1.0 + 2.0**3.5)),  # (1 + u)^a leaves the floating-point range here
        *soak((0.01, 1.0, 1.0 + 2.0**0.5), (0.01, 1.0, 1025.0), (1e-4, 0.1, 1025.0)),
    ],
)
def test_alone_and_in_a_batch_it_matches_50_digits_and_is_rounded_up(q: float, s: float, order: float) -> None:
    event, exact = PoissonSampledGaussian(q, s), exact_rdp(q, s, order)
    alone = rdp.rdp(event, [order])[0]
    in_a_batch = rdp.divergences([event], OCTAVES)[0, np.flatnonzero(order == OCTAVES)[0]]
    for ours in (alone, in_a_batch):
        assert 0.0 <= float(ours / exact - 1) < 3e-11


def test_long_orders_lie_on_a_chord_above_their_neighbours_curve() -> None:
    below, order, above = rdp.rdp(PoissonSampledGaussian(0.01, 1.0), [46.0, 46.25, 47.0])
    assert order * 45.25 == pytest.approx(0.75 * below * 45.0 + 0.25 * above * 46.0)


def test_a_row_of_a_batch_does_not_depend_on_the_others() -> None:
    events = [
        PoissonSampledGaussian(0.01, 1.0),
        RandomizedResponse(3, 0.5),
        PoissonSampledGaussian(1.0, 2.0),
        PoissonSampledGaussian(0.01, 1e-3),
        PoissonSampledLaplace(0.2, 1.0),
        PoissonSampledGaussian(0.3, 1.02),
        FixedSizeSampledGaussian(1, 10, 2.0),
        PoissonSampledGaussian(0.01, 1.0),
        PoissonSampledGaussian(1e-3, 1e9),
    ]
    rows = rdp.divergences(events, OCTAVES)
    assert rows.shape == (9, 29)
    for event, row in zip(events, rows, strict=True):
        assert row == pytest.approx(rdp.rdp(event, OCTAVES), rel=1e-13)
    assert rdp.divergences([], OCTAVES).shape == (0, 29)


@pytest.mark.parametrize("order", [1.0, 0.5, float("nan"), float("inf")])
def test_orders_are_finite_and_start_above_one(order: float) -> None:
    with pytest.raises(ValueError, match="greater than 1"):
        rdp.rdp(PoissonSampledGaussian(0.1, 1.0), [order])
