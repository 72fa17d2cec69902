"""At equal privacy our errors are those of OpenDP's best offers, or less; and where they are more, it is said.

OpenDP cannot be seeded: each figure that is measured would fail by chance with probability 1e-4 or less.
"""

import math

import numpy as np
import pytest

import fedprivacy as fp
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Noisy
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import GaussianAnswers, deviation
from fedprivacy.training.keystream import Keystream, Position
from fedprivacy.values.events import PoissonSampledGaussian
from tests.questions import opendp_oracle as opendp
from tests.questions.opendp_oracle import root_mean_square

SIGMAS = [0.5, 7.0]


def stated(question, records, sigma):
    """Our errors by name: `test_figures` shows that they are those that are measured."""
    (totals,) = question.totals(fp.Table({"x": records}))
    noisy = Noisy(totals.astype(np.float64), deviation(question, sigma))
    return {figure.name: figure.error for figure in question.figures(noisy)}


def values(question, records, sigma, many):
    """Our first figure but the count, of so many answers."""
    table, scale = fp.Table({"x": records}), deviation(question, sigma)
    mechanism, asked = GaussianAnswers(PoissonSampledGaussian(1.0, sigma)), Questionnaire((question,))
    keys = (Keystream.from_seed(number, "client-0") for number in range(many))
    answers = (mechanism.release(asked, table, key, Position(1, 1))[0] for key in keys)
    return np.array([question.figures(Noisy(a.totals[0].astype(np.float64), scale))[1].value for a in answers])


@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_count_and_a_histogram_err_as_opendp_s(sigma):
    ours = stated(Questions.count(), [1] * 100, sigma)["count"]
    assert ours <= 1.05 * opendp.count(sigma)[1]
    errors = stated(Questions.histogram("x", 0, 10, 10), np.arange(100) % 10, sigma)
    assert max(errors.values()) <= 1.05 * opendp.histogram(10, sigma)[1]


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(("low", "high"), [(0, 120), (100, 120), (-60, 40), (-120, 0)])
def test_a_sum_errs_as_opendp_s_and_tells_a_count_beside_it(low, high, sigma):
    errors = stated(Questions.sum("x", low, high), np.full(1000, high), sigma)
    assert errors["sum of x"] <= 1.05 * opendp.total(low, high, sigma)[1]
    assert errors["count"] < 3.6 * sigma


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("value", [0.0, 30.0, 120.0])
def test_a_mean_errs_no_more_than_opendp_s_which_takes_the_number_of_records_for_public(value, sigma):
    size = 5000
    ours = stated(Questions.mean("x", 0, 120), np.full(size, value), sigma)["mean of x"]
    assert ours <= 1.05 * opendp.mean(0.0, 120.0, size, sigma)[1]


def test_sixty_quantiles_err_less_than_opendp_s_one_by_one_and_one_alone_errs_more():
    """An exponential mechanism finds one quantile of one client with a third of our error: the price of answers that
    add up over clients, and tell all quantiles at once."""
    sigma, size, many = 3.0, 1000, 250
    records = np.random.default_rng(4).normal(50.0, 15.0, size)
    ours = root_mean_square(values(Questions.median("x", 0, 100), records, sigma, many) - np.median(records))
    alone, among = (
        root_mean_square([measure(records.tolist()) - np.median(records) for _ in range(many)])
        for measure in (opendp.quantile(0.5, 0.0, 100.0, 512, sigma * math.sqrt(n)) for n in (1, 60))
    )
    assert alone < ours < 4.5 * alone
    assert ours < among
