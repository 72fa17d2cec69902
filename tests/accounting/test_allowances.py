"""Small allowances are charged: made large enough to be seen, or used up by errors as large, each moves its figure."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy
from scipy import stats

from fedprivacy.accounting import batch, calibration, filters, pairs, pld, rdp
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.calibration import Calibration, noise_multipliers
from fedprivacy.accounting.filters import AdaptiveFilter, GaussianFilter
from fedprivacy.accounting.gdp import gaussian_mu
from fedprivacy.accounting.histories import person_history, untruncated
from fedprivacy.accounting.pairs import Direction
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, PoissonSampledGaussian, TruncatedPoissonSampledGaussian


def exact_delta(q: float, s: float, rows: int, epsilon: float) -> float:
    """The larger delta of both directions of one execution for a person with so many rows, by quadrature."""
    x, step = np.linspace(-12.0 * s, rows + 12.0 * s, 200_001, retstep=True)
    without = stats.norm.pdf(x, 0.0, s)
    used = sum(stats.binom.pmf(j, rows, q) * stats.norm.pdf(x, j, s) for j in range(rows + 1))
    both = (used, without), (without, used)
    return max(float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * step) for one, other in both)


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_the_error_of_the_inverse_transform_is_charged(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With units in the last place of 1e-6, and a transform that errs downwards by all that they allow."""
    history: dict[Event, int] = {PoissonSampledGaussian(0.1, 1.0): 1}
    inverse = scipy.fft.irfft

    def worst(product: np.ndarray, points: int) -> np.ndarray:
        allowed = 1e-6 * math.log2(points) * math.sqrt(2.0 / points) * float(np.linalg.norm(product))
        return np.asarray(inverse(product, points) - allowed)

    monkeypatch.setattr(scipy.fft, "irfft", worst)
    assert exact_delta(0.1, 1.0, 1, pld.epsilon(history, delta)) > 1.001 * delta
    monkeypatch.setattr(pld, "ROUNDING", 1e-6)
    assert exact_delta(0.1, 1.0, 1, pld.epsilon(history, delta)) <= delta


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("q", "s", "rows", "delta", "epsilon"),
    [(4.005434358950115e-06, 1.9316344830596894, 10, 7.4e-273, math.inf), (0.01, 0.05, 1, 1e-300, 935.5867)],
)
def test_a_delta_next_to_0_has_a_bound_or_none_and_no_figure_that_is_no_number(
    q: float, s: float, rows: int, delta: float, epsilon: float
) -> None:
    history = person_history({PoissonSampledGaussian(q, s): 1}, rows)
    assert pld.epsilon(history, delta) == pytest.approx(epsilon, rel=1e-6)
    for epsilons, deltas in pld.profiles(history).values():
        assert not np.isnan(epsilons).any() and not np.isnan(deltas).any()


def test_samples_that_are_cut_down_cost_their_probability_in_both_distributions() -> None:
    """Chua et al. 2024: delta + (1 + e^epsilon) psi, at every point of the profile, and at the epsilon of a delta."""
    cut = TruncatedPoissonSampledGaussian(0.1, 1.0, 500, 78)
    whole, probability = untruncated({cut: 4})
    assert 1e-5 < probability < 1e-3
    ours, plain = pld.profiles({cut: 4}), pld.profiles(whole)
    for direction in Direction:
        (epsilons, deltas), (same, without) = ours[direction], plain[direction]
        counts = np.isfinite(epsilons) & (deltas < 1.0)
        assert np.array_equal(epsilons, same) and epsilons[counts].max() > 0.3
        more = (1.0 + np.exp(epsilons[counts])) * probability
        assert deltas[counts] - without[counts] == pytest.approx(more, rel=1e-6, abs=1e-15)
    epsilon = pld.epsilon({cut: 4}, 1e-2)
    left = 1e-2 - (1.0 + math.exp(epsilon)) * probability
    assert pld.epsilon(whole, left) == pytest.approx(epsilon, rel=2e-3)
    assert epsilon >= pld.epsilon(whole, left) > 1.01 * pld.epsilon(whole, 1e-2)


@pytest.mark.parametrize("past", [{}, {PoissonSampledGaussian(1.0, 9.0): 7}])
def test_no_adaptive_quota_passes_its_bound_by_rounding(past: dict[Event, int]) -> None:
    """Events of which a whole number costs what is left, but for the last bits of a floating-point number."""
    rounded_up = 0
    for epsilon, steps in itertools.product(np.arange(2.0, 5.0, 0.1), (17, 33)):
        kept = AdaptiveFilter(PrivacyBudget(float(epsilon), 1e-5))
        spent = float(rdp.compose(past, [kept.order])[0])
        left = kept.bound - spent
        noise = math.sqrt(kept.order * steps / (2.0 * left))
        noise *= math.sqrt(float(rdp.rdp(PoissonSampledGaussian(1.0, noise), [kept.order])[0]) * steps / left)
        for units in range(-6, 7):
            event = PoissonSampledGaussian(1.0, noise * (1.0 + units * 2.0**-52))
            cost, quota = float(rdp.rdp(event, [kept.order])[0]), kept.quota(past, event)
            assert spent + quota * cost <= kept.bound
            rounded_up += quota < int(left / cost)
    assert rounded_up > 0


def test_improbable_numbers_of_joining_rows_cost_their_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out below 2e-3 each; the sampling rates differ a little, since these probabilities are remembered."""
    sharp = pld.epsilon(person_history({PoissonSampledGaussian(0.0503, 1.2): 1}, 12), 0.03)
    assert 0.99 * 0.03 < exact_delta(0.0503, 1.2, 12, sharp) <= 0.03
    monkeypatch.setattr(pairs, "NO_WEIGHT", 2e-3)
    charged = pld.epsilon(person_history({PoissonSampledGaussian(0.0504, 1.2): 1}, 12), 0.03)
    assert charged > 1.05 * sharp and exact_delta(0.0504, 1.2, 12, charged) <= 0.03


TO_THE_EDGE = [
    (7.5200158061865165, 0.033048528286013124, 1),
    (5.430392494979111, 0.00307122127441096, 10),
    (2.5770796545692907, 0.003498281630853909, 53),
    (2.421899491910403, 0.001227315219184908, 2),
    (0.7161934696270177, 0.0010241219042071525, 428),
    (2.42675146165337, 0.009532581717873427, 22),
]
"""Epsilons, sampling rates and steps of which the search meets a noise multiplier that costs all but 1e-4 of epsilon.
"""


def test_solved_noise_keeps_the_budget_however_the_composition_of_many_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The composition of many errs downwards by nearly all that is allowed for."""
    exact = BatchComposer.epsilons
    monkeypatch.setattr(BatchComposer, "epsilons", lambda *asked: exact(*asked) * (1.0 - 0.9e-4))
    monkeypatch.setattr(calibration, "REMEMBERED", {})
    asked = [Calibration(PrivacyBudget(epsilon, 1e-6), q, steps) for epsilon, q, steps in TO_THE_EDGE]
    for one, noise in zip(asked, noise_multipliers(asked), strict=True):
        assert isinstance(noise, float)
        assert 0.999 <= pld.epsilon(one.history(noise), one.budget.delta) / one.budget.epsilon <= 1.0


@pytest.mark.parametrize(("many", "few", "delta"), [(1000, 769, 1e-5), (1000, 333, 1e-8), (300, 120, 1e-5)])
def test_a_spectrum_made_for_many_steps_is_made_anew_for_few(many: int, few: int, delta: float) -> None:
    """On one grid; frequencies that vanish after many steps count after few."""
    event = PoissonSampledGaussian(0.02, 1.1)

    def epsilon(composer: BatchComposer, steps: int) -> float:
        return float(composer.epsilons(composer.counts([{event: steps}]), np.array([delta]))[0])

    used = BatchComposer()
    epsilon(used, many)
    assert epsilon(used, few) == epsilon(BatchComposer(), few)


def test_a_search_for_losses_that_ends_early_costs_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newton's method, with one step instead of all that it takes."""
    history = person_history({PoissonSampledGaussian(0.2, 1.5): 1}, 8)
    sharp = pld.epsilon(history, 1e-3)
    assert 0.99e-3 < exact_delta(0.2, 1.5, 8, sharp) <= 1e-3
    monkeypatch.setattr(pairs, "MOST_NEWTON_STEPS", 1)
    charged = pld.epsilon(person_history({PoissonSampledGaussian(0.2, 1.5001): 1}, 8), 1e-3)
    assert charged > sharp * 1.001 and exact_delta(0.2, 1.5001, 8, charged) <= 1e-3


@pytest.mark.parametrize("rows", [2, 3, 7, 10])
def test_rows_divide_a_person_s_noise_and_rounding_adds_none(rows: int) -> None:
    for noise in np.random.default_rng(rows).uniform(0.1, 40.0, 50).tolist():
        (event,) = person_history({PoissonSampledGaussian(1.0, noise): 1}, rows)
        least = Fraction(event.noise_multiplier) * rows
        assert Fraction(noise) * Fraction(1 - 1e-15) < least <= Fraction(noise)


def test_gaussians_are_counted_in_parts_that_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 parts in one instead of 2^96."""
    kept = GaussianFilter(PrivacyBudget(6.0, 1e-5))
    monkeypatch.setattr(filters, "PARTS", 64)
    largest = Fraction(gaussian_mu(6.0, 1e-5)) ** 2
    fewer = 0
    for noise in np.random.default_rng(5).uniform(1.0, 3.0, 100).tolist():
        quota = kept.quota({}, PoissonSampledGaussian(1.0, noise))
        assert quota / Fraction(noise) ** 2 <= largest
        fewer += (quota + 1) / Fraction(noise) ** 2 <= largest
    assert fewer > 0


def test_frequencies_that_are_dropped_are_charged_to_one_history_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    history: dict[Event, int] = {PoissonSampledGaussian(0.02, 1.1): 500}
    sharp = pld.epsilon(history, 1e-5)
    monkeypatch.setattr(pld, "DROPPED", -9.0)
    assert pld.epsilon(history, 1e-5) > sharp * (1.0 + 1e-4)


@pytest.mark.parametrize(
    ("changed", "least", "most"),
    [({"slack": 1e-4}, 0.0499, 0.0501), ({"log_finite": -1e-8}, 0.05, 0.5), ({"log_doubt": 1e-6}, 1e-6, 0.1)],
    ids=["slack", "infinite losses", "rounding"],
)
def test_what_each_step_adds_is_charged_to_many_histories(
    changed: dict[str, float], least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allowances of 500 steps: nats added to epsilon, a probability of an infinite loss, and errors of transforms."""
    event, made = PoissonSampledGaussian(0.02, 1.1), batch.Spectrum.of

    def spectra(*asked: Any) -> list[batch.Spectrum]:
        return [
            one._replace(**{name: getattr(one, name) + more for name, more in changed.items()}) for one in made(*asked)
        ]

    def epsilon() -> float:
        composer = BatchComposer()
        return float(composer.epsilons(composer.counts([{event: 500}]), np.array([1e-5]))[0])

    sharp = epsilon()
    monkeypatch.setattr(batch, "_NEGLIGIBLE", np.inf)
    monkeypatch.setattr(batch.Spectrum, "of", spectra)
    assert least < epsilon() - sharp < most
