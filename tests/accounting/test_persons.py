"""A person with several rows: the exact epsilon, against closed forms and quadrature."""

import math

import pytest

import fedprivacy as fp
from fedprivacy.accounting import AdaptiveFilter, pld, rdp
from fedprivacy.accounting.histories import person_history
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import (
    FixedSizeSampledGaussian,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
)
from tests.accounting.marked import exhaustive, soak
from tests.accounting.oracles import exact_share, gaussian_epsilon

FACT = {"sampling_rate": 0.01, "noise_multiplier": 1.0, "steps": 1000, "delta": 1e-5}
OTHER = PoissonSampledGaussian(1.0, 30.0)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "k", "delta", "other"),
    [
        (0.3, 6.0, 60, 3, 1e-5, {}),
        *exhaustive((0.01, 1.0, 1000, 5, 1e-5, {OTHER: 4}), (0.01, 1.0, 1000, 2, 1e-12, {})),
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


def test_of_several_rows_divergences_prove_nothing():
    history = person_history({PoissonSampledGaussian(0.01, 1.0): 3}, 4)
    assert rdp.epsilon(history, 1e-5) == math.inf
    assert AdaptiveFilter(PrivacyBudget(8.0, 1e-5)).quota({}, *history) == 0


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
