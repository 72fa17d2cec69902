"""Sums, means, standard deviations and covariances: what they are without noise, and how a sum is weighed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprivacy as fp
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import Estimate, Noisy
from fedprivacy.questions.moments import MOST_COLUMNS, Bounded, Sum
from fedprivacy.questions.standardise import standardiser

RANDOM = np.random.default_rng(1)
AGE = RANDOM.normal(60.0, 12.0, 500)
WEIGHT = 75.0 + 0.5 * (AGE - 60.0) + RANDOM.normal(0.0, 10.0, 500)
DOSE = RANDOM.uniform(0.0, 8.0, 500) - 0.02 * WEIGHT
TABLE = fp.Table({"age": AGE, "weight": WEIGHT, "dose": DOSE})
BOTH = {"age": (0.0, 120.0), "weight": (0.0, 200.0)}


def exact(question, table=TABLE):
    """Figures without noise, by name."""
    noisy = Noisy(question.totals(table)[0].astype(np.float64), 1e-9)
    return {figure.name: figure.value for figure in question.figures(noisy)}


def test_without_noise_figures_are_what_numpy_says():
    columns, bounds = {"age": AGE, "weight": WEIGHT, "dose": DOSE}, BOTH | {"dose": (-10.0, 10.0)}
    found = exact(Questions.covariance(bounds)) | exact(Questions.mean_and_scale(bounds))
    expected = {"count": 500.0}
    for name, values in columns.items():
        expected[f"mean of {name}"] = pytest.approx(values.mean(), abs=1e-4)
        expected[f"standard deviation of {name}"] = pytest.approx(values.std(), abs=1e-3)
    for one, other in itertools.combinations_with_replacement(columns, 2):
        both = columns[one], columns[other]
        expected[f"covariance of {one} and {other}"] = pytest.approx(np.cov(*both, ddof=0)[0, 1], abs=1e-2)
        if one != other:
            expected[f"correlation of {one} and {other}"] = pytest.approx(np.corrcoef(*both)[0, 1], abs=1e-4)
    assert found == expected
    assert exact(Questions.sum("age", 0, 120)) == {"count": 500.0, "sum of age": pytest.approx(AGE.sum(), abs=1e-2)}


@pytest.mark.parametrize("bounds", [(-100, 100), (-1, 3), (0, 120), (100, 120)])
def test_a_sum_counts_every_record_once_wherever_its_bounds_lie(bounds):
    """The count is right around zero, too, where it has a small share of the sensitivity."""
    numbers = np.linspace(*bounds, 40)
    question = Questions.sum("x", *bounds)
    assert exact(question, fp.Table({"x": numbers})) == {
        "count": pytest.approx(40.0),
        "sum of x": pytest.approx(numbers.sum(), abs=1e-2),
    }
    noisy = Noisy(question.totals(fp.Table({"x": numbers}))[0].astype(np.float64), 1e-9)
    assert question.records(noisy) == pytest.approx(40.0)  # by which a small group is not told


def test_numbers_beyond_the_bounds_count_as_the_bounds_and_records_that_lack_one_not_at_all():
    table = fp.Table({"age": [-50, 500, None, 60, 60], "weight": [100, 100, 100, "?", 100]})
    assert exact(Questions.mean("age", 0, 120), table) == {"count": 4.0, "mean of age": 60.0}
    found = exact(Questions.mean_and_scale(BOTH), table)
    assert found["count"] == 3.0 and found["mean of weight"] == 100.0
    assert found["standard deviation of age"] == pytest.approx(math.sqrt(2400.0), abs=1e-4)


# Weights.


NUMBER = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(NUMBER, st.floats(1e-3, 1e6)), min_size=1, max_size=6), st.data())
def test_no_other_weights_of_a_sum_would_err_less(bounds, data):
    """Sum of squared errors, each in units of the largest number that its bounds allow; but for what a count keeps."""
    of = tuple(Bounded(f"x{n}", low, low + width) for n, (low, width) in enumerate(bounds))
    weights = Sum(of=of).weights

    def squared_errors(weights):
        count, *sums = (weight**2 for weight in weights)
        each = (
            (one.middle**2 / count + one.half**2 / own) / max(abs(one.low), abs(one.high)) ** 2
            for one, own in zip(of, sums, strict=True)
        )
        return (count + sum(sums)) * sum(each)

    for _ in range(5):
        others = [weight * data.draw(st.floats(0.2, 5.0)) for weight in weights]
        assert squared_errors(weights) <= 1.1 * squared_errors(others)  # the count keeps 8.5 % of the sensitivity
    assert squared_errors(weights) <= 1.1 * squared_errors([1.0] * len(weights))


def test_a_sum_with_one_sided_bounds_has_the_error_of_the_sum_alone():
    for low, high in [(0, 120), (100, 120), (-120, -100), (20, 25)]:
        question = Questions.sum("x", low, high)
        noisy = Noisy(np.zeros(2), math.sqrt(question.squared_sensitivity))
        assert question.figures(noisy)[1].error == pytest.approx(max(abs(low), abs(high)), rel=1e-4)


@pytest.mark.parametrize(("low", "high"), [(-40, 100), (0, 120), (-100, 100)])
def test_the_error_of_a_sum_is_how_far_its_value_moves_with_the_noise(low, high):
    question = Questions.sum("x", low, high)
    said, *noisy = (
        question.figures(Noisy(np.array(totals) * 2.0**40, 2.0**40))[1] for totals in ([5, 2], [6, 2], [5, 3])
    )
    assert said.error == pytest.approx(math.hypot(*(each.value - said.value for each in noisy)))


def test_around_zero_the_count_of_a_sum_stays_of_use_and_the_sum_errs_hardly_more():
    question = Questions.sum("x", -100, 100)
    count, total = question.figures(Noisy(np.zeros(2), math.sqrt(question.squared_sensitivity)))
    assert count.error == pytest.approx(3.43, abs=0.01)
    assert total.error == pytest.approx(104.5, abs=0.1)


# What cannot be asked.


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"a": (1, 0)},
        {"a": (0, math.inf)},
        {"a": (math.nan, 1)},
        {"a": (1.0, 1.0 + 1e-13)},
        {"a": (0, 5e-324)},
        {"a": (0, 1, 2)},
        {"a" * 257: (0, 1)},
        {str(n): (0, 1) for n in range(MOST_COLUMNS + 1)},
    ],
)
def test_columns_without_two_bounds_are_refused(bounds):
    with pytest.raises(QuestionError) as caught:
        Questions.covariance(bounds)
    assert len(str(caught.value)) < 500


def test_inputs_are_scaled_by_their_bounds_where_the_noise_leaves_no_deviation():
    asked = fp.ask.mean_and_scale({"x": (0, 10), "y": (0, 10), "z": (-1, 1)})
    told = {"standard deviation of x": 1e-9, "mean of y": 4.0, "standard deviation of y": 2.0}
    numbers = standardiser(asked, [Estimate(name, value) for name, value in told.items()]).numbers
    assert (numbers["mean"], numbers["scale"]) == ([5.0, 4.0, 0.0], [5.0, 2.0, 1.0])
