"""Classical bounds, and the central limit of Gaussian differential privacy."""

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.accounting import composition, gdp, pld
from fedprivacy.values.events import History, PoissonSampledGaussian
from tests.accounting import oracles
from tests.accounting.marked import exhaustive


@pytest.mark.parametrize("epsilon", [1e-12, 0.5, 1.0, 1.0 + 1e-12, 40.0, 2000.0])
@pytest.mark.parametrize("q", [1e-9, 0.3, 1.0])
def test_amplification_matches_40_digits(epsilon: float, q: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(mpmath.mpf(epsilon)))
    ours, delta = composition.amplify(epsilon, 1e-3, q)
    assert ours == pytest.approx(float(exact), rel=1e-8)
    assert delta == pytest.approx(q * 1e-3)


def test_advanced_composition_is_the_formula() -> None:
    first, second = PoissonSampledGaussian(0.01, 1.0), PoissonSampledGaussian(0.02, 2.0)
    history = {first: 900, second: 100}
    one, other = (composition.basic({event: 1}, 0.5e-5 / 1000) for event in (first, second))
    drift = sum(k * e * (math.exp(e) - 1) / (math.exp(e) + 1) for k, e in ((900, one), (100, other)))
    expected = drift + math.sqrt(2 * math.log(2e5) * (900 * one**2 + 100 * other**2))
    assert composition.advanced(history, 1e-5) == pytest.approx(expected)
    assert expected < composition.basic(history, 1e-5)


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
