"""Stated intervals hold the exact value on the records as often as they say: on heaps, ties, bounds, few and many.

Seeds are fixed; an unlucky seed would fail with probability 1e-4 or less if 95 % of the intervals were right.
"""

import re

import numpy as np
import pytest
from scipy.stats import binom

import fedprivacy as fp
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Noisy
from tests.accounting.marked import exhaustive, soak
from tests.questions.coverage import CASES, Case, asked, measured, table

APPROXIMATE = {"standard deviations": 0.92, "covariances": 0.92, "correlations": 0.85}
"""Least coverage by the delta method, where a figure is told of hardly enough records."""

LINEAR = {"counts", "levels", "histograms", "sums"}
"""Kinds of figures whose error is that of the noise, neither less nor more."""

QUICK = {"forty records, sigma 1", "smooth, sigma 10", "persons"}
LONG = {name for name in CASES if re.search(r"million|0\.05|10$", name)} - QUICK

FIGURES = 40 * len(CASES)


def probability(found, least=0.95):
    """The probability that no more intervals are right, if the least share is."""
    return binom.cdf(found.held, found.told, least)


def case(x, sigma, name="x"):
    columns = table(np.asarray(x, np.float64))
    return Case(name, [fp.Table(columns)], columns, [sigma])


@pytest.mark.parametrize(
    "name", [*sorted(QUICK), *exhaustive(*(name for name in CASES if name not in QUICK | LONG)), *soak(*sorted(LONG))]
)
def test_intervals_and_errors_of_every_kind_are_right(name):
    """Where there is hardly any noise, totals are rounded, too."""
    case = CASES[name]()
    for question in asked(**case.clauses):
        for figure, found in measured(question, case, 300).items():
            assert probability(found, APPROXIMATE.get(found.kind, 0.95)) > 1e-4 / FIGURES, (figure, found)
            if found.told == 300:
                least = 0.78 if found.kind in LINEAR and case.sigmas != [0.05] else 0.0
                assert least <= found.off < 1.25, (figure, found)


@pytest.mark.parametrize("question", [Questions.mean("x", 0, 120), Questions.sum("x", 0, 120)])
def test_the_rounding_of_equal_numbers_is_in_the_interval(question):
    """A hundred thousand equal numbers are rounded alike, which little noise does not hide."""
    for name, found in measured(question, case(np.full(100_000, 36.6), 0.005), 60).items():
        assert probability(found) > 1e-6 and found.off < 1.25, name


def test_a_level_that_stands_out_by_its_noise_alone_has_an_interval_that_knows_it():
    question = Questions.heavy_hitters("s", ["f", "m", "x"], 1)
    found = measured(question, case(np.full(40, 7.0), 10.0), 2000)["f", ""]  # 30 records, and 41 stand out
    assert 100 < found.told < 500
    assert probability(found) > 1e-4


@pytest.mark.parametrize("at", [0.1234567890123, 7.6543210987654])
def test_a_quantile_at_a_bound_of_many_digits_is_in_its_interval(at):
    columns = {"x": np.full(400, at)}
    question = Questions.median("x", 0.1234567890123, 7.6543210987654, 64)
    found = measured(question, Case("at a bound", [fp.Table(columns)], {**columns, "s": columns["x"]}, [0.5]), 20)
    assert found["median of x", ""].held == 20


@pytest.mark.parametrize("question", [Questions.mean("x", 0, 120), Questions.median("x", 0, 120, 16)])
def test_a_mean_or_median_that_is_told_because_its_count_is_too_large_has_an_interval_that_knows_it(question):
    per_count = question.per_count * np.sqrt(question.squared_sensitivity)
    few = case(np.full(25, 120.0), 25.0 / (1.6 * per_count))  # 1.6 deviations, and 3 are enough
    for (name, _), found in measured(question, few, 2000).items():
        if name != "count":
            assert 60 < found.told < 300
            assert probability(found) > 1e-4, name


@pytest.mark.parametrize("value", [37.3, 0.0, 120.0])
def test_equal_numbers_have_no_correlation(value):
    columns = {"x": np.full(200, value), "y": np.arange(200.0)}
    question = Questions.covariance({"x": (0, 120), "y": (0, 200)})
    totals = question.totals(fp.Table(columns))[0].astype(np.float64)
    random, scale = np.random.default_rng(1), 2.0**20
    noisy = [Noisy(totals + random.normal(0.0, scale, len(totals)), scale) for _ in range(200)]
    told = [question.figures(each)[-1].value is not None for each in noisy]
    assert sum(told) <= 2
