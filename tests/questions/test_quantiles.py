"""Quantiles: running counts come back exactly, and their noise is as large as is said."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.quantiles import MOST_POINTS, MOST_QUANTILES, UNIT, coefficients, decoder, spread

POINTS = [2, 3, 64, 513, MOST_POINTS]


@pytest.mark.parametrize("count", POINTS)
def test_coefficients_are_those_of_the_root_in_whole_steps(count):
    c = coefficients(count)
    assert c[0] == UNIT and c[1] == UNIT // 2 and np.all(np.diff(c) <= 0) and c[-1] > 0
    product = np.convolve(c / UNIT, c / UNIT)[:count]
    assert np.abs(product - 1.0).max() < 0.15  # (1 - x)^(-1/2) twice is 1 / (1 - x), but for rounding


@pytest.mark.parametrize("count", POINTS)
def test_running_counts_come_back_exactly(count):
    bins = np.random.default_rng(count).integers(0, 1000, count)
    totals = np.convolve(bins, coefficients(count))[:count].astype(np.float64)
    running = np.convolve(totals, decoder(count))[:count]
    assert np.abs(running - np.cumsum(bins)).max() < 1e-6


def factors(count):
    """Encoder and decoder as matrices, the noise of the release in units of its deviation."""
    c, r = (
        np.array([[v[i - j] if i >= j else 0.0 for j in range(count)] for i in range(count)])
        for v in (coefficients(count).astype(np.float64), decoder(count))
    )
    return c, r


@pytest.mark.parametrize("probability", [0.01, 0.25, 0.5, 0.9])
def test_the_deviation_of_the_noise_is_that_of_the_matrices(probability):
    count = 40
    _, r = factors(count)
    running = np.vstack([np.zeros(count), r])
    excess = running - probability * running[-1]
    deviations, correlations = spread(count, probability)
    assert np.allclose(deviations, np.linalg.norm(excess, axis=1), rtol=1e-10)
    last = np.linalg.norm(running[-1])
    assert np.allclose(correlations, excess @ running[-1] / (deviations * last), atol=1e-10)
    question = Questions.median("x", 0, 1, count)
    assert question.per_count == pytest.approx(np.linalg.norm(running[-1]))


@pytest.mark.parametrize("count", [16, 128, 512])
def test_no_running_count_errs_more_than_the_logarithm_allows(count):
    """The bound of Fichtenberger, Henzinger and Upadhyay: 1 + (ln n + 0.58) / pi, and our rounding of coefficients."""
    c, r = factors(count)
    error = np.linalg.norm(c, axis=0).max() * np.linalg.norm(r, axis=1).max()
    assert error < 1.001 * (1.0 + (math.log(count) + 0.5772) / math.pi)


def exact(question, numbers):
    totals = question.totals(fp.Table({"x": numbers}))[0].astype(np.float64)
    return {figure.name: figure.value for figure in question.figures(Noisy(totals, 1e-6))}


@given(st.lists(st.floats(-10.0, 110.0), min_size=5, max_size=60), st.floats(0.01, 0.99), st.integers(2, 300))
def test_without_noise_a_quantile_is_within_an_interval_of_the_records_one(numbers, probability, points):
    found = exact(Questions.quantiles("x", 0, 100, [probability], points), numbers)
    ordered = np.sort(np.clip(numbers, 0.0, 100.0))
    rank = probability * len(numbers)
    least, most = ordered[max(math.ceil(rank - 1e-6) - 1, 0)], ordered[min(math.floor(rank + 1e-6), len(numbers) - 1)]
    (value,) = (value for name, value in found.items() if name != "count")
    assert least - 100.0 / points - 1e-3 <= value <= most + 100.0 / points + 1e-3
    assert found["count"] == pytest.approx(len(numbers), abs=1e-3)


@pytest.mark.parametrize("count", [10, 11, 15])
def test_without_noise_every_definition_of_a_quantile_between_two_records_is_in_the_interval(count):
    """Those of Hyndman and Fan (1996); records are farther apart than intervals are wide."""
    numbers = np.linspace(5, 95, count) ** 1.02
    question = Questions.quantiles("x", 0, 110, (0.1, 0.25, 0.5, 0.85))
    totals = question.totals(fp.Table({"x": numbers}))[0].astype(np.float64)
    for probability, figure in zip(question.at, question.figures(Noisy(totals, 1e-3))[1:], strict=True):
        for method in ("linear", "inverted_cdf", "weibull", "hazen", "median_unbiased", "interpolated_inverted_cdf"):
            assert figure.low <= np.quantile(numbers, probability, method=method) <= figure.high, (probability, method)
        assert figure.high - figure.low < 3.5 * 110.0 / count


def test_where_noisy_running_counts_fall_they_are_pooled():
    """Forty records in sixty-four intervals: as it is, the noisy function crosses a probability more than once."""
    question, random = Questions.median("x", 0, 64, 64), np.random.default_rng(6)
    exact = question.totals(fp.Table({"x": np.linspace(20, 40, 40)}))[0].astype(np.float64)
    falling = 0
    for _ in range(50):
        noisy = Noisy(exact + random.normal(0.0, 3.0 * UNIT, 64), 3.0 * UNIT)
        running = np.concatenate([[0.0], np.convolve(noisy.totals, decoder(64))[:64]])
        excess = running - 0.5 * running[-1]
        falling += (np.diff(np.sign(excess)) < 0).any()
        rising = isotonic_regression(excess).x
        place = int(np.searchsorted(rising, 0.0))
        share = -rising[place - 1] / (rising[place] - rising[place - 1])
        assert question.figures(noisy)[1].value == pytest.approx(place - 1 + share)
    assert falling > 10


def test_what_is_no_quantile_and_no_number_of_points_is_refused():
    for at in ((), (0.0,), (1,), (math.nan,), ("0.5",), 0.5, "0.5", [n / 101 for n in range(1, MOST_QUANTILES + 2)]):
        with pytest.raises(QuestionError):
            Questions.quantiles("x", 0, 1, at)
    for points in (1, MOST_POINTS + 1, 512.0, True):
        with pytest.raises(QuestionError):
            Questions.median("x", 0, 1, points)
