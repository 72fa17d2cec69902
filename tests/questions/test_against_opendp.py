"""At equal privacy our errors are those of OpenDP's best offers, or less.

Privacy is zero-concentrated differential privacy when one record is added or removed: a Gaussian of noise multiplier
sigma has rho = 1 / (2 sigma^2) (Bun and Steinke 2016).
"""

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.release import deviation

SIGMAS = [0.5, 7.0]


@pytest.fixture(scope="module")
def dp():
    import opendp.prelude as dp  # takes a second

    dp.enable_features("contrib")
    return dp


def whole(dp):
    """Whole numbers: of real sums between -60 and 60, OpenDP takes twice the sensitivity."""
    return dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()


def error(dp, query, sigma, d_in=1):
    """Standard deviation of the discrete Gaussian noise that OpenDP adds to a query."""
    rho = 1.0 / (2.0 * sigma**2)
    return dp.binary_search_param(lambda scale: query >> dp.m.then_gaussian(scale), d_in=d_in, d_out=rho, T=float)


def stated(question, records, sigma):
    """Our errors by name: `test_coverage` shows that they are those that are measured."""
    (totals,) = question.totals(fp.Table({"x": records}))
    noisy = Noisy(totals.astype(np.float64), deviation(question, sigma))
    return {figure.name: figure.error for figure in question.figures(noisy)}


@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_count_and_a_histogram_err_as_opendp_s(dp, sigma):
    ours = stated(Questions.count(), [1] * 100, sigma)["count"]
    assert ours <= 1.05 * error(dp, whole(dp) >> dp.t.then_count(), sigma)
    errors = stated(Questions.histogram("x", 0, 10, 10), np.arange(100) % 10, sigma)
    bins = dp.t.then_count_by_categories(list(range(10)), null_category=False, MO=dp.L2Distance[int])
    assert max(errors.values()) <= 1.05 * error(dp, whole(dp) >> bins, sigma)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(("low", "high"), [(0, 120), (100, 120), (-60, 40), (-120, 0)])
def test_a_sum_errs_as_opendp_s_and_tells_a_count_beside_it(dp, low, high, sigma):
    errors = stated(Questions.sum("x", low, high), np.full(1000, high), sigma)
    theirs = error(dp, whole(dp) >> dp.t.then_clamp((low, high)) >> dp.t.then_sum(), sigma)
    assert errors["sum of x"] <= 1.05 * theirs
    assert errors["count"] < 3.6 * sigma


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("value", [0.0, 30.0, 120.0])
def test_a_mean_errs_no_more_than_opendp_s_which_takes_the_number_of_records_for_public(dp, value, sigma):
    """A public number of records means that one is replaced by another."""
    size, bounded = 5000, dp.atom_domain(T=float, nan=False, bounds=(0.0, 120.0))
    ours = stated(Questions.mean("x", 0, 120), np.full(size, value), sigma)["mean of x"]
    query = (dp.vector_domain(bounded, size=size), dp.symmetric_distance()) >> dp.t.then_mean()
    assert ours <= 1.05 * error(dp, query, sigma, d_in=2)
