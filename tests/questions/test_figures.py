"""The estimators by their formulas; `test_coverage` measures that figures err as they say."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from fedprivacy.questions import figures
from fedprivacy.questions.constructors import Questions
from fedprivacy.questions.figures import CONFIDENCE, Estimate, Noisy, delta_method, ratio
from tests.questions.kinds import all_questions


def test_a_ratio_s_interval_is_every_ratio_that_its_noise_does_not_exclude():
    for over, under, noise in [(3.0, 20.0, 1.0), (-9.0, 30.0, 2.0), (0.0, 24.0, 1.3), (0.5, 1000.0, 1.0)]:
        figure = ratio("r", over, under, noise)
        for end in (figure.low, figure.high):
            if abs(end) < 1.0:
                expected = CONFIDENCE * noise * math.hypot(1.0, end)
                assert abs(over - end * under) == pytest.approx(expected, rel=1e-3)
        assert figure.low <= figure.value <= figure.high


@pytest.mark.parametrize("room", [0.1, 0.5, 1.0, 2.5, 4.0, 7.0])
def test_the_farther_end_of_what_is_told_only_if_it_is_large_is_reached_in_one_of_forty_of_such_releases(room):
    """Exactly: with the lower end for the truth, 2.5 % of the values that are told would be as large, or larger."""
    above, below = Estimate.with_interval("e", 50.0, 2.0, room), Estimate.with_interval("e", 50.0, 2.0, -room)
    farther = (50.0 - above.low) / 2.0
    assert ndtr(-farther) / ndtr(room - farther) == pytest.approx(0.025, rel=1e-6)
    assert (below.high - 50.0) / 2.0 == pytest.approx(farther)
    assert (above.high - 50.0) / 2.0 == (50.0 - below.low) / 2.0 == pytest.approx(CONFIDENCE)


def test_what_is_beyond_its_range_is_moved_to_it_and_its_error_stays():
    assert ratio("r", 12.0, 10.0, 1.0)[1:3] == pytest.approx((1.0, math.hypot(1.0, 1.0) / 10.0))
    figure = Estimate.with_interval("r", 1.5, 0.1).clip(-1.0, 1.0)
    assert figure.value == figure.low == figure.high == 1.0 and figure.error == 0.1


def test_an_estimate_takes_the_totals_of_its_places_and_the_error_of_each():
    noisy = Noisy(np.array([1.0, 20.0, 300.0, 4000.0]), 2.0)
    figure = delta_method("e", lambda a, b: a - 3.0 * b, noisy, (2, 0))
    assert figure.value == 297.0 and figure.error == pytest.approx(2.0 * math.sqrt(10.0))
    assert figure.high - figure.value == pytest.approx(CONFIDENCE * figure.error, rel=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_told(value):
    nothing = Estimate("e")
    assert Estimate.with_interval("e", value, 1.0) == Estimate.with_interval("e", 1.0, value) == nothing
    assert nothing.clip(0.0, 1.0) == nothing.transform(math.sqrt) == nothing
    assert delta_method("e", lambda _: value, Noisy(np.zeros(1), 1.0), (0,)) == nothing


def test_the_rounding_of_every_record_is_in_the_interval_of_a_smooth_function(monkeypatch):
    """With numbers rounded by .01: a ratio of a sum and a count is off by as much at most."""
    told = []
    for rounding in (0.0, 0.01):
        monkeypatch.setattr(figures, "ROUNDING", rounding)
        told.append(delta_method("e", lambda count, total: total / count, Noisy(np.array([1e4, 2e3]), 1.0), (0, 1)))
    assert [told[0].low - told[1].low, told[1].high - told[0].high] == pytest.approx([0.01, 0.01], rel=1e-3)


def test_too_few_records_are_divided_by_nothing():
    for question in all_questions():
        for figure in question.figures(Noisy(np.zeros(question.width), 1.0)):
            divided = figure.name.startswith(("mean", "standard", "covariance", "correlation", "median", "quantile"))
            assert (figure.value is None) == divided
    mean, deviation_of = Questions.mean("x", 0, 1), Questions.variance("x", 0, 1)
    for question, place, enough in ((mean, 1, 3.0), (deviation_of, 1, 3.0), (deviation_of, 2, 5.0)):
        for over, known in ((enough * 0.999, False), (enough * 1.001, True)):
            totals = np.array([over, *[0.0] * (question.width - 1)])
            assert (question.figures(Noisy(totals, 1.0))[place].value is not None) == known
