import math

import mpmath
import pytest

from fedprivacy.accounting import gdp, pld
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from tests.accounting import oracles


@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-12, 1e-100, 1e-300])
@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.0099, 0.0101, 0.3, 1.0, 12.0, 500.0])
def test_the_gaussian_epsilon_matches_60_digits(mu: float, delta: float) -> None:
    ours = gdp.gaussian_epsilon(mu, delta)
    if ours == 0.0:
        assert oracles.gaussian_delta(mu, 0.0, 60) <= delta * (1 + 1e-12)
    else:
        above, below = (oracles.gaussian_delta(mu, ours * share, 60) for share in (1 - 1e-9, 1 + 1e-9))
        assert above > delta > below


@pytest.mark.parametrize("delta", [0.9, 1e-5, 1e-300])
@pytest.mark.parametrize("epsilon", [1e-12, 0.5, 30.0, 1e6, 1e12])
def test_the_largest_mu_of_a_budget_is_right_and_within_1e_8(epsilon: float, delta: float) -> None:
    with mpmath.workdps(400):
        mu = mpmath.mpf(gdp.gaussian_mu(epsilon, delta))
        fits, does_not = (oracles.gaussian_delta(m, epsilon, 400) for m in (mu, mu * (1 + mpmath.mpf("1e-8"))))
        assert fits <= delta < does_not


def test_without_sampling_it_is_exact() -> None:
    history = {PoissonSampledGaussian(1.0, 3.0): 9, PoissonSampledGaussian(1.0, 0.5): 2}
    assert gdp.mu(history) == pytest.approx(3.0)
    assert gdp.epsilon(history, 1e-6) == pytest.approx(oracles.gaussian_epsilon(3.0, 1e-6))
    assert gdp.mu({PoissonSampledGaussian(1.0, 6.0, NeighbouringRelation.REPLACE_ONE): 9}) == pytest.approx(1.0)


def test_mu_is_that_of_the_central_limit_theorem() -> None:
    first, second = PoissonSampledGaussian(0.01, 1.0), PoissonSampledGaussian(0.1, 2.0)
    assert gdp.mu({first: 1000}) == pytest.approx(0.01 * math.sqrt(1000 * (math.e - 1)))
    assert gdp.mu({first: 50, second: 7}) == pytest.approx(math.hypot(gdp.mu({first: 50}), gdp.mu({second: 7})))


def test_it_is_no_bound() -> None:
    """The documentation's figure: 5.8 times too small."""
    history = {PoissonSampledGaussian(0.001, 0.7): 10}
    assert pld.epsilon(history, 1e-5) / gdp.epsilon(history, 1e-5) == pytest.approx(5.8, abs=0.1)


@pytest.mark.filterwarnings("error")
def test_extremes() -> None:
    assert gdp.epsilon({}, 1e-5) == 0.0
    assert gdp.mu({PoissonSampledGaussian(0.5, 1e-3): 1}) == math.inf
    assert gdp.epsilon({PoissonSampledGaussian(0.5, 1e-3): 1}, 1e-5) == math.inf
    assert gdp.epsilon({PoissonSampledGaussian(1.0, 1e-100): 1}, 1e-5) == pytest.approx(5e199)
    assert gdp.epsilon({PoissonSampledGaussian(1.0, 1e200): 1}, 1e-150) == 0.0
