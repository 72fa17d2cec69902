"""Epsilon from readings of steps: an exact bound on the shift, composed by the accountant."""

import math

import numpy as np
import pytest
from scipy import special, stats

from fedprivacy.accounting import pld
from fedprivacy.audit.bounds import Readings, least_noncentrality, least_shift, per_step_epsilon
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.1, 1.0)


def drawn(rng, count, noise, length=1.0, rate=0.1):
    canaries = rng.binomial(3, rate, count).astype(float)
    return Readings.of(length * canaries + rng.normal(0, noise, count), canaries)


@pytest.mark.parametrize(("t", "degrees"), [(0.5, 1), (3.0, 10), (40.0, 500), (100.0, 10**6)])
@pytest.mark.parametrize("confidence", [0.05, 0.95, 0.9999])
def test_the_noncentrality_is_scipy_s_where_scipy_has_one(t, degrees, confidence):
    found = least_noncentrality(t, degrees, confidence)
    if found >= 0.0:
        assert special.nctdtr(degrees, found, t) == pytest.approx(confidence, abs=1e-9)


def test_readings_with_and_without_a_canary_are_the_two_sample_t_test():
    rng = np.random.default_rng(0)
    without, joined = rng.normal(0, 2, 300), rng.normal(1, 2, 40)
    readings = Readings.of(np.concatenate([without, joined]), np.repeat([0.0, 1.0], [300, 40]))
    t = readings.slope / readings.deviation * math.sqrt(readings.spread)
    assert t == pytest.approx(stats.ttest_ind(joined, without).statistic)
    assert readings.slope == pytest.approx(joined.mean() - without.mean())


def test_readings_of_steps_are_added():
    rng = np.random.default_rng(0)
    values, canaries = rng.normal(size=90), rng.integers(0, 3, 90).astype(float)
    parts = [Readings.of(v, k) for v, k in zip(np.split(values, 3), np.split(canaries, 3), strict=True)]
    whole, added = Readings.of(values, canaries), sum(parts, Readings())
    assert added.number == whole.number
    assert (added.slope, added.deviation) == pytest.approx((whole.slope, whole.deviation))


@pytest.mark.parametrize(
    ("count", "noise", "confidence"),
    [
        (6, 4.0, 0.9),
        pytest.param(6, 0.3, 0.99, marks=pytest.mark.exhaustive),
        pytest.param(2_000, 1.0, 0.9, marks=pytest.mark.exhaustive),
    ],
)
def test_the_bound_exceeds_the_shift_exactly_as_often_as_stated(count, noise, confidence):
    """The formal guarantee, from both sides; false alarms 1e-5."""
    rng, trials = np.random.default_rng(5), 1_000
    readings = [drawn(rng, count, noise, rate=0.4) for _ in range(trials)]
    readings = [each for each in readings if each.spread > 0.0]
    exceeded = sum(least_shift(each, confidence) > 1 / noise for each in readings)
    low, high = stats.binom.ppf([5e-6, 1 - 5e-6], len(readings), 1 - confidence)
    assert low <= exceeded <= high


def test_exact_readings_stay_below_the_truth_and_come_near_it():
    """Noise of exactly the promised deviation that points along no canary."""
    canaries = np.tile([0.0, 1.0, 0.0, 1.0], 50_000)
    noise = 2.0 * np.tile([1.0, 1.0, -1.0, -1.0], 50_000)
    found = least_shift(Readings.of(canaries + noise, canaries), 0.95)
    assert 0.97 * 0.5 < found < 0.5


def test_what_cannot_be_read_proves_nothing():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=100)
    assert least_shift(Readings.of(noise[:2], np.array([0.0, 1.0])), 0.95) == 0.0
    assert least_shift(Readings.of(noise, np.zeros(100)), 0.95) == 0.0  # nobody ever joined
    assert least_shift(Readings.of(noise, np.ones(100)), 0.95) == 0.0  # all always did
    canaries = np.tile([0.0, 1.0], 50)
    assert least_shift(Readings.of(noise - canaries, canaries), 0.95) == 0.0


def test_a_release_that_cannot_be_read_is_an_error_and_no_loss():
    with pytest.raises(ValueError, match="not finite"):
        Readings.of(np.array([0.0, np.nan, 1.0]), np.zeros(3))


def test_without_noise_everything_is_lost():
    canaries = np.tile([0.0, 1.0, 3.0, 1.0], 30)
    readings = Readings.of(canaries, canaries)
    assert least_shift(readings, 0.95) == math.inf
    assert per_step_epsilon(math.inf, EVENT, 100, 1e-5) == math.inf


@pytest.mark.parametrize("noise", [1e-4, 0.01])
def test_very_little_noise_proves_very_much(noise):
    found = least_shift(drawn(np.random.default_rng(0), 100_000, noise), 0.95)
    assert 0.98 / noise < found < 1 / noise


@pytest.mark.parametrize("noise", [0.9, 1.7, 4.0])
def test_a_shift_is_composed_by_the_accountant_of_the_upper_bound(noise):
    event = PoissonSampledGaussian(0.1, 99.0)  # not believed
    claimed = pld.epsilon({PoissonSampledGaussian(0.1, noise): 100}, 1e-5)
    assert per_step_epsilon(1 / noise, event, 100, 1e-5) == pytest.approx(claimed, rel=1e-9)
    assert per_step_epsilon(0.99 / noise, event, 100, 1e-5) < claimed
    assert per_step_epsilon(0.0, event, 100, 1e-5) == 0.0
