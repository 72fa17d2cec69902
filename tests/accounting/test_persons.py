"""A person with several rows: the exact epsilon, against closed forms and quadrature."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

import fedprivacy as fp
from fedprivacy.accounting import AdaptiveFilter, pld, rdp
from fedprivacy.accounting.histories import person_history
from fedprivacy.accounting.pairs import pair
from fedprivacy.accounting.privacy_loss import Direction, deviation, discretise
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import (
    FixedSizeSampledGaussian,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    RowSampledGaussian,
    TruncatedPoissonSampledGaussian,
)
from tests.accounting.marked import exhaustive, soak
from tests.accounting.oracles import discrete_delta, exact_share, gaussian_epsilon

FACT = {"sampling_rate": 0.01, "noise_multiplier": 1.0, "steps": 1000, "delta": 1e-5}
OTHER = PoissonSampledGaussian(1.0, 30.0)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "k", "delta", "other"),
    [
        (0.3, 6.0, 60, 3, 1e-5, {}),
        *exhaustive(
            (0.01, 1.0, 1000, 5, 1e-5, {OTHER: 4}),
            (0.01, 1.0, 1000, 2, 1e-12, {}),
            (0.001, 0.8, 200, 4, 1e-4, {OTHER: 4}),
            (0.4, 2.0, 3, 7, 1e-3, {}),
        ),
        *soak((0.3, 6.0, 60, 5, 1e-9, {OTHER: 4}), (0.05, 9.0, 500, 20, 1e-5, {OTHER: 4})),
    ],
)
def test_epsilon_is_exact_and_never_too_small(q, sigma, steps, k, delta, other):
    history = person_history({PoissonSampledGaussian(q, sigma): steps, **other}, k)
    assert 0.99 < exact_share(history, pld.epsilon(history, delta), delta) <= 1.0


@pytest.mark.parametrize(
    ("settings", "epsilons"),
    [
        (FACT, {1: 1.83, 2: 3.98, 5: 11.64}),
        (FACT | {"sampling_rate": 0.3, "noise_multiplier": 6.0, "steps": 60}, {1: 1.55, 2: 3.39, 5: 10.01}),
    ],
)
def test_the_figures_of_the_guide(settings, epsilons):
    for rows, epsilon in epsilons.items():
        assert round(fp.epsilon(**settings, rows_per_person=rows), 2) == epsilon


@pytest.mark.parametrize("direction", Direction)
def test_one_step_is_dominated_in_each_direction_and_tightly(direction):
    event, x = RowSampledGaussian(0.3, 1.5, 2), np.linspace(-15.0, 17.0, 400_001)
    person = sum(stats.binom.pmf(j, 2, 0.3) * stats.norm.pdf(x, j, 1.5) for j in range(3))
    one, other = (person, stats.norm.pdf(x, 0.0, 1.5))[:: 1 if direction is Direction.REMOVE else -1]
    loss = discretise(event, log2_step := math.floor(math.log2(deviation(event) / 300.0)), 8.0).of(direction)[0]
    for epsilon in deviation(event) * np.linspace(0.1, 4.0, 9):
        found = discrete_delta(loss, 2.0**log2_step, epsilon - loss.slack)
        truth = np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * (x[1] - x[0])
        assert truth - 1e-8 <= found <= 1.001 * truth + 1e-8


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 200), *exhaustive((0.6, 7.0, 300))])
def test_another_row_costs_more_and_one_costs_what_a_record_does(q, sigma, steps):
    epsilons = [pld.epsilon({RowSampledGaussian(q, sigma, k): steps}, 1e-5) for k in range(1, 9)]
    assert epsilons == sorted(epsilons) and epsilons[-1] > 2.0 * epsilons[0]
    assert epsilons[0] == pytest.approx(pld.epsilon({PoissonSampledGaussian(q, sigma): steps}, 1e-5), rel=1e-12)
    assert fp.epsilon(**FACT, rows_per_person=1, clients_per_person=1) == fp.epsilon(**FACT)


@pytest.mark.parametrize(("relation", "sensitivity"), [("zero-out", 1), ("add-or-remove-one", 1), ("replace-one", 2)])
def test_without_sampling_k_rows_are_a_gaussian_of_k_times_the_sensitivity(relation, sensitivity):
    settings = {"sampling_rate": 1.0, "noise_multiplier": 20.0, "steps": 9, "delta": 1e-6, "relation": relation}
    truth = gaussian_epsilon(7 * sensitivity * 3 / 20.0, 1e-6)
    assert truth <= fp.epsilon(**settings, rows_per_person=7) <= 1.0003 * truth


def test_questions_about_rows_are_composed():
    laplace = {PoissonSampledLaplace(1.0, 12.0): 1}
    assert pld.epsilon(person_history(laplace, 4), 1e-6) == pytest.approx(4 / 12 + 2 * math.log1p(-1e-6), rel=1e-4)
    answers = RandomizedResponse(3, 0.4)
    assert person_history({answers: 2}, 3) == {answers: 6}
    history = {PoissonSampledGaussian(0.1, 3.0): 50, PoissonSampledGaussian(1.0, 8.0): 2}
    alone = [pld.epsilon(person_history({event: count}, 4), 1e-5) for event, count in history.items()]
    assert max(alone) < pld.epsilon(person_history(history, 4), 1e-5) < sum(alone)
    past = {PoissonSampledGaussian(1.0, 8.0): 2}
    settings = {"sampling_rate": 0.1, "noise_multiplier": 3.0, "steps": 50, "delta": 1e-5}
    assert fp.epsilon(**settings, past=past, rows_per_person=4) == pld.epsilon(person_history(history, 4), 1e-5)


def test_the_losses_of_a_persons_clients_add_up():
    twice = FACT | {"steps": 2000}
    assert fp.epsilon(**FACT, clients_per_person=2) == fp.epsilon(**twice)
    assert fp.epsilon(**FACT, rows_per_person=3, clients_per_person=2) == fp.epsilon(**twice, rows_per_person=3)
    past = {PoissonSampledGaussian(0.02, 2.0): 5}
    thrice = {PoissonSampledGaussian(0.02, 2.0): 15, PoissonSampledGaussian(0.01, 1.0): 3000}
    assert fp.epsilon(**FACT, past=past, clients_per_person=3) == pld.epsilon(thrice, 1e-5)


def test_of_several_rows_divergences_prove_nothing():
    history = person_history({PoissonSampledGaussian(0.01, 1.0): 3}, 4)
    assert rdp.epsilon(history, 1e-5) == math.inf
    assert AdaptiveFilter(PrivacyBudget(8.0, 1e-5)).quota({}, *history) == 0


X = np.linspace(-40.0, 60.0, 100_001)


@pytest.mark.parametrize(("q", "sigma"), [(0.3, 0.5), (0.05, 2.0)])
@pytest.mark.parametrize("rows", [(1.0, -1.0), (1.0, 0.3), (0.5, 0.5)])
def test_the_worst_rows_have_the_largest_norm_and_point_one_way(q, sigma, rows):
    def deltas(first, second):
        sums = [(0.0, (1 - q) ** 2), (first, q * (1 - q)), (second, q * (1 - q)), (first + second, q * q)]
        person = sum(weight * stats.norm.pdf(X, centre, sigma) for centre, weight in sums)
        nobody, factors = stats.norm.pdf(X, 0.0, sigma), np.exp(np.linspace(0.0, 4.0, 17))[:, None]
        pairs = ((person, nobody), (nobody, person))
        return np.array([np.maximum(a - factors * b, 0.0).sum(axis=1) * (X[1] - X[0]) for a, b in pairs])

    assert (deltas(*rows) <= deltas(1.0, 1.0) + 1e-9).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "sigma", "k"),
    [
        (0.01, 1.0, 5),
        (1.0 - 1e-13, 2.0, 40),
        *exhaustive((1e-6, 0.5, 64), (1.0 - 1e-9, 2.0, 3), (0.02, 3.0, 1024)),
    ],
)
def test_the_slack_covers_what_is_left_of_the_search_for_a_loss(q, sigma, k):
    rows = pair(RowSampledGaussian(q, sigma, k))
    losses = np.linspace(*rows.support(7.0)[:, 0], 41)[1:-1]
    outcomes, slack = rows.outcomes(losses, np.array([0]))
    with mpmath.workdps(60):
        rate, s = mpmath.mpf(q), mpmath.mpf(sigma)
        weights = [mpmath.binomial(k, j) * rate**j * (1 - rate) ** (k - j) for j in range(k + 1)]
        counted = [(j, weight) for j, weight in enumerate(weights) if weight >= 1e-50 or j <= 1]
        for wanted, outcome in zip(losses.tolist(), outcomes.tolist(), strict=True):
            x = mpmath.mpf(outcome) * s + mpmath.mpf(1) / 2
            terms = [weight * mpmath.exp((2 * j * x - j * j) / (2 * s**2)) for j, weight in counted]
            assert abs(mpmath.log(mpmath.fsum(terms)) - wanted) <= slack
    assert slack < 1e-10


def test_as_many_rows_as_a_unit_may_have_are_counted():
    found = fp.epsilon(sampling_rate=0.001, noise_multiplier=8.0, steps=10, delta=1e-5, rows_per_person=1024)
    all_at_once = gaussian_epsilon(1024 * math.sqrt(10) / 8.0, 1e-5)
    assert fp.epsilon(sampling_rate=0.001, noise_multiplier=8.0, steps=10, delta=1e-5) < found < all_at_once


@pytest.mark.parametrize("name", ["rows_per_person", "clients_per_person"])
def test_a_number_that_is_none_and_one_that_makes_too_many_steps_are_named_with_the_remedy(name):
    for value in (0, 1.5, True, 1025):
        with pytest.raises(ValueError, match=rf"^{name} is {value}; choose an integer from 1 to 1024\.$"):
            fp.epsilon(**FACT, **{name: value})
    with pytest.raises(
        ValueError, match=r"^clients_per_person is 1000, which makes 3,000,000,000 steps in all; choose fewer"
    ):
        fp.epsilon(**FACT | {"steps": 3_000_000}, clients_per_person=1000)


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampledLaplace(0.5, 3.0),
        FixedSizeSampledGaussian(10, 100, 3.0),
        TruncatedPoissonSampledGaussian(0.1, 3.0, 100, 60, NeighbouringRelation.ZERO_OUT),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_mechanism_without_a_pair_for_several_rows_is_refused_by_name(event):
    with pytest.raises(
        ValueError, match=rf"^rows_per_person is 2, and .* {type(event).__name__}: use rows_per_person 1"
    ):
        person_history({event: 3}, 2)
    assert person_history({event: 3}, 1, 2) == {event: 6}
