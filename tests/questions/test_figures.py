"""Figures by their formulas, without noise by numpy, and their errors; `test_coverage` measures their intervals."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

import fedprivacy as fp
from fedprivacy.questions import figures
from fedprivacy.questions.constructors import Questions, parse
from fedprivacy.questions.figures import CONFIDENCE, Estimate, Noisy, delta_method, ratio
from fedprivacy.questions.lattice import STEPS
from fedprivacy.questions.quantiles import MOST_POINTS, UNIT, coefficients, decoder, spread
from fedprivacy.questions.release import deviation
from fedprivacy.questions.standardise import standardiser
from tests.questions.kinds import all_questions


def noisy_totals(question, table, deviation=1e-9):
    """Totals without noise, which are said to have noise of a deviation."""
    return Noisy(question.totals(table)[0].astype(np.float64), deviation)


def exact(question, table):
    """Return figures without noise, by name."""
    return {figure.name: figure.value for figure in question.figures(noisy_totals(question, table))}


# --- every figure ---


def test_a_ratio_s_interval_is_every_ratio_that_its_noise_does_not_exclude():
    for over, under, noise in [(3.0, 20.0, 1.0), (-9.0, 30.0, 2.0), (0.0, 24.0, 1.3), (0.5, 1000.0, 1.0)]:
        figure = ratio("r", over, under, noise)
        for end in (figure.low, figure.high):
            expected = CONFIDENCE * noise * math.hypot(1.0, end)
            assert abs(end) == 1.0 or abs(over - end * under) == pytest.approx(expected, rel=1e-3)


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


@pytest.mark.parametrize("sigma", [0.5, 7.0])
@pytest.mark.parametrize(("low", "high"), [(100, 120), (-60, 40), (-120, 0)])
def test_a_sum_errs_as_opendp_s_and_tells_a_count_beside_it(low, high, sigma):
    """At equal zero-concentrated privacy: a Gaussian has rho = 1 / (2 sigma^2) (Bun and Steinke 2016)."""
    import opendp.prelude as dp  # takes a second

    dp.enable_features("contrib")
    question = Questions.sum("x", low, high)
    noisy = noisy_totals(question, fp.Table({"x": np.full(1000, high)}), deviation(question, sigma))
    errors = {figure.name: figure.error for figure in question.figures(noisy)}
    whole = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()  # sums of reals take twice as much noise
    query = whole >> dp.t.then_clamp((low, high)) >> dp.t.then_sum()
    rho = 1.0 / (2.0 * sigma**2)
    theirs = dp.binary_search_param(lambda scale: query >> dp.m.then_gaussian(scale), d_in=1, d_out=rho, T=float)
    assert errors["sum of x"] <= 1.05 * theirs and errors["count"] < 3.6 * sigma


# --- counts ---


def counted(question, table):
    return (question.totals(table)[0] / STEPS).tolist()


def test_records_are_counted_by_level_or_interval_of_which_the_outer_ones_hold_those_beyond_and_an_empty_cell_by_none():
    table = fp.Table({"sex": ["f", "m", " f", "x", "", None, "3.0"], "age": [0, 9, 10, 99, -1, None, "?"]})
    assert counted(Questions.count(), table) == [7]
    assert counted(Questions.categories("sex", ["m", "f", 3]), table) == [1, 2, 1, 1]
    assert counted(Questions.histogram("age", 0, 20, 2), table) == [3, 2]
    assert counted(Questions.categories("sex", ["none"]), table) == [0, 5]
    floats = fp.Table({"sex": np.array([1.0, np.nan, 2.0])})
    assert counted(Questions.categories("sex", [1]), floats) == [1, 1]


def test_heavy_hitters_are_the_largest_counts_that_stand_out_of_the_noise():
    def told(most, counts, deviation):
        question = Questions.heavy_hitters("icd", ["a", "b", "c", "d", "e"], most)
        return question.figures(Noisy(np.array(counts) * STEPS, deviation * STEPS))

    assert [(f.name, f.value) for f in told(2, [50, 400, 3, 300, 200, 9999], 1.0)] == [("b", 400), ("d", 300)]
    assert [f.name for f in told(2, [-9, 4.0, 0, 0, 6.0, 500.0], 1.0)] == ["e"]
    (found,) = told(1, [290, 400, 3, 300, 200, 9999], 50.0)
    farther = (400.0 - found.low) / 50.0
    assert norm.sf(farther) / norm.sf(farther - 2.0) == pytest.approx(0.025)  # 300 is two errors below


def test_what_the_noise_alone_makes_is_hardly_ever_a_heavy_hitter():
    """Once in a thousand answers at most."""
    question = Questions.heavy_hitters("icd", list(range(1000)), 10)
    noise = np.random.default_rng(3).normal(0.0, 50.0, (400, 1001))
    assert sum(bool(question.figures(Noisy(row * STEPS, 50.0 * STEPS))) for row in noise) <= 3


BOUNDS = [
    *((0, 100, 10), (50, 250, 20), (0, 30, 30), (-3, 4, 7), (0, 12345670, 10), (1e6, 1e6 + 1, 30)),
    *((0, 1, 10), (0, 0.3, 3), (-0.7, 0.7, 14), (0.1, 0.7, 6), (0, 1, 3), (0, 365, 512), (-1e100, 1e100, 50)),
]


@pytest.mark.parametrize(("low", "high", "count"), BOUNDS)
def test_a_number_on_an_edge_counts_in_the_interval_that_begins_with_the_edge_shown(low, high, count):
    """As `count where x=edge:edge`, typed from the figures' names, says too."""
    question = Questions.histogram("x", low, high, count)
    edges = [name.split(" to ")[0] for name in question.bins]
    width = high / count - low / count
    assert np.allclose(np.diff([low, *map(float, edges[1:]), high]), width, rtol=2.1e-3)
    between = np.nextafter([float(edge) for edge in edges[1:]], -np.inf)
    table = fp.Table({"x": [low, *map(float, edges[1:]), *between, high]})
    assert counted(question, table) == [2] * count
    for first, after in list(itertools.pairwise(edges))[1:40]:
        (where,) = parse(f"count where x={first}:{after}")
        assert counted(where, table) == [2]


@pytest.mark.parametrize("low", [1.0, -1.0, 3e99, 0.0])
def test_between_the_narrowest_bounds_every_interval_has_edges_of_its_own(low):
    question = Questions.histogram("x", low, max(low + 1.01e-12 * abs(low), low + 1.01e-100), 4096)
    edges = [float(name.split(" to ")[0]) for name in question.bins]
    assert (np.diff(edges) > 0.0).all() and counted(question, fp.Table({"x": edges})) == [1] * 4096


# --- sums, means, deviations and covariances ---

RANDOM = np.random.default_rng(1)
AGE = RANDOM.normal(60.0, 12.0, 500)
WEIGHT = 75.0 + 0.5 * (AGE - 60.0) + RANDOM.normal(0.0, 10.0, 500)
COLUMNS = {"age": AGE, "weight": WEIGHT, "dose": RANDOM.uniform(0.0, 8.0, 500) - 0.02 * WEIGHT}
BOTH = {"age": (0.0, 120.0), "weight": (0.0, 200.0)}


def test_without_noise_figures_are_what_numpy_says():
    bounds, table = BOTH | {"dose": (-10.0, 10.0)}, fp.Table(COLUMNS)
    found = exact(Questions.covariance(bounds), table) | exact(Questions.mean_and_scale(bounds), table)
    expected = {"count": 500.0}
    for name, values in COLUMNS.items():
        expected[f"mean of {name}"] = pytest.approx(values.mean(), abs=1e-4)
        expected[f"standard deviation of {name}"] = pytest.approx(values.std(), abs=1e-3)
    for one, other in itertools.combinations_with_replacement(COLUMNS, 2):
        both = COLUMNS[one], COLUMNS[other]
        expected[f"covariance of {one} and {other}"] = pytest.approx(np.cov(*both, ddof=0)[0, 1], abs=1e-2)
        if one != other:
            expected[f"correlation of {one} and {other}"] = pytest.approx(np.corrcoef(*both)[0, 1], abs=1e-4)
    assert found == expected


@pytest.mark.parametrize("bounds", [(-100, 100), (-1, 3), (0, 120), (100, 120)])
def test_a_sum_counts_every_record_once_wherever_its_bounds_lie(bounds):
    """The count is right around zero, too, where it has a small share of the sensitivity."""
    table, question = fp.Table({"x": np.linspace(*bounds, 40)}), Questions.sum("x", *bounds)
    total = pytest.approx(np.linspace(*bounds, 40).sum(), abs=1e-2)
    assert exact(question, table) == {"count": pytest.approx(40.0), "sum of x": total}
    assert question.records(noisy_totals(question, table)) == pytest.approx(40.0)  # by which a small group is not told


def test_numbers_beyond_the_bounds_count_as_the_bounds_and_records_that_lack_one_not_at_all():
    table = fp.Table({"age": [-50, 500, None, 60, 60], "weight": [100, 100, 100, "?", 100]})
    assert exact(Questions.mean("age", 0, 120), table) == {"count": 4.0, "mean of age": 60.0}
    found = exact(Questions.mean_and_scale(BOTH), table)
    assert found["count"] == 3.0 and found["mean of weight"] == 100.0
    assert found["standard deviation of age"] == pytest.approx(math.sqrt(2400.0), abs=1e-4)


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


def test_inputs_are_scaled_by_their_bounds_where_the_noise_leaves_no_deviation():
    asked = fp.ask.mean_and_scale({"x": (0, 10), "y": (0, 10), "z": (-1, 1)})
    told = {"standard deviation of x": 1e-9, "mean of y": 4.0, "standard deviation of y": 2.0}
    numbers = standardiser(asked, [Estimate(name, value) for name, value in told.items()]).numbers
    assert (numbers["mean"], numbers["scale"]) == ([5.0, 4.0, 0.0], [5.0, 2.0, 1.0])


# --- quantiles ---


@pytest.mark.parametrize("count", [2, 3, 64, 513, MOST_POINTS])
def test_running_counts_come_back_exactly_from_the_root_in_whole_steps(count):
    """Coefficients of (1 - x)^(-1/2), which twice is 1 / (1 - x), but for rounding."""
    c = coefficients(count)
    assert c[0] == UNIT and c[1] == UNIT // 2 and np.all(np.diff(c) <= 0) and c[-1] > 0
    assert np.abs(np.convolve(c / UNIT, c / UNIT)[:count] - 1.0).max() < 0.15
    bins = np.random.default_rng(count).integers(0, 1000, count)
    totals = np.convolve(bins, c)[:count].astype(np.float64)
    assert np.abs(np.convolve(totals, decoder(count))[:count] - np.cumsum(bins)).max() < 1e-6


@pytest.mark.parametrize("count", [16, 512])
def test_no_running_count_errs_more_than_the_logarithm_allows(count):
    """The bound of Fichtenberger, Henzinger and Upadhyay: 1 + (ln n + 0.58) / pi, and our rounding of coefficients."""
    error = np.linalg.norm(coefficients(count).astype(np.float64)) * np.linalg.norm(decoder(count))
    assert error < 1.001 * (1.0 + (math.log(count) + 0.5772) / math.pi)


@pytest.mark.parametrize("probability", [0.25, 0.9])
def test_the_deviation_of_a_quantile_s_noise_is_that_of_its_matrix(probability):
    """Its rows are the running counts of independent noise, and of what exceeds the probability's share of all."""
    r = decoder(40)
    running = np.array([[*r[:count][::-1], *[0.0] * (40 - count)] for count in range(41)])
    excess, last = running - probability * running[-1], np.linalg.norm(running[-1])
    deviations, correlations = spread(40, probability)
    assert np.allclose(deviations, np.linalg.norm(excess, axis=1), rtol=1e-10)
    assert np.allclose(correlations, excess @ running[-1] / (deviations * last), atol=1e-10)
    assert Questions.median("x", 0, 1, 40).per_count == pytest.approx(last)


@pytest.mark.parametrize("count", [10, 11, 15])
def test_without_noise_every_definition_of_a_quantile_between_two_records_is_in_the_interval(count):
    """Those of Hyndman and Fan (1996); records are farther apart than intervals are wide."""
    numbers = np.linspace(5, 95, count) ** 1.02
    question = Questions.quantiles("x", 0, 110, (0.1, 0.25, 0.5, 0.85))
    found = question.figures(noisy_totals(question, fp.Table({"x": numbers}), 1e-3))
    for probability, figure in zip(question.at, found[1:], strict=True):
        for method in ("linear", "inverted_cdf", "weibull", "hazen", "median_unbiased", "interpolated_inverted_cdf"):
            assert figure.low <= np.quantile(numbers, probability, method=method) <= figure.high, (probability, method)
        assert figure.high - figure.low < 3.5 * 110.0 / count
