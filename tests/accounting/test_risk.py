"""The most that an attacker finds: never less than the best test there is, hardly more, and never above (ε, δ)."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from fedprivacy.accounting import pld
from fedprivacy.accounting.calculator import risk
from fedprivacy.accounting.histories import person_history
from fedprivacy.accounting.risk import Risk
from fedprivacy.values.events import (
    FixedSizeSampledGaussian,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    TruncatedPoissonSampledGaussian,
)

RATES = np.array([1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.9])
TRAINING = {PoissonSampledGaussian(0.01, 1.0): 1000}


@pytest.mark.parametrize("mu", [0.02, 0.3, 1.0, 2.5, 6.0])
def test_one_gaussian_mechanism_has_the_trade_off_function_of_gaussian_differential_privacy(mu):
    """Dong, Roth, Su 2022: Phi(Phi^-1(a) + mu). Two of them that add up to the same mu are the same mechanism."""
    best = ndtr(ndtri(RATES) + mu)
    for history in (
        {PoissonSampledGaussian(1.0, 1.0 / mu): 1},
        {PoissonSampledGaussian(1.0, 5.0 / mu): 16, PoissonSampledGaussian(1.0, 5.0 / mu / 3.0): 1},
        {PoissonSampledGaussian(1.0, 2.0 / mu, NeighbouringRelation.REPLACE_ONE): 1},
    ):
        risk = Risk.of_history(history, 1e-5)
        assert (risk.found(RATES) >= best).all()
        assert risk.found(RATES) == pytest.approx(best, rel=3e-3)
        assert risk.advantage == pytest.approx(2 * ndtr(mu / 2) - 1, rel=1e-3)
        assert risk.advantage >= 2 * ndtr(mu / 2) - 1


def test_a_simulated_attacker_with_the_best_test_finds_as_many_and_no_more():
    """40,000 trainings with the record and 40,000 without; the limits fail by chance once in 10,000 times."""
    q, sigma, steps, runs = 0.3, 4.0, 60, 40_000
    rng = np.random.default_rng(7)

    def losses(used):
        outcomes = rng.normal(0.0, sigma, (runs, steps)) + (rng.random((runs, steps)) < q) * used
        return np.log1p(q * np.expm1((2 * outcomes - 1) / (2 * sigma**2))).sum(axis=1)

    without, used = losses(0.0), losses(1.0)
    risk = Risk.of_history({PoissonSampledGaussian(q, sigma): steps}, 1e-5)
    for rate in (0.01, 0.05, 0.2):
        threshold = np.quantile(without, 1 - rate)
        found, limit = (used > threshold).mean(), float(risk.found(rate))
        # Deviations of the share found, and of the threshold, by which the false accusations differ from `rate`.
        chance = 3.9 * math.sqrt(limit * (1 - limit) / runs) + 3.9 * math.sqrt(rate / runs) * limit / rate
        assert limit - chance < found < limit + chance


HISTORIES = {
    "training": TRAINING,
    "several": {PoissonSampledGaussian(0.1, 1.0): 100, PoissonSampledGaussian(1.0, 20.0): 5},
    "a person": person_history(TRAINING, 5),
    "laplace": {PoissonSampledLaplace(0.2, 1.5): 7},
    "responses": {RandomizedResponse(4, 0.6): 2},
    "fixed size": {FixedSizeSampledGaussian(20, 400, 1.5): 30},
    "cut down": {TruncatedPoissonSampledGaussian(0.1, 1.2, 500, 90): 30},
    "hardly any noise": {PoissonSampledGaussian(0.5, 1e-5): 1},
    "nothing": {},
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize("delta", [1e-2, 1e-9])
def test_the_whole_curve_never_says_more_than_epsilon_at_one_delta(history, delta):
    whole = Risk.of_history(history, delta)
    one_point = Risk.of_budget(pld.epsilon(history, delta), delta)
    rates = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 50)])
    assert (whole.found(rates) <= one_point.found(rates) * (1 + 1e-9)).all()
    assert whole.advantage <= one_point.advantage * (1 + 1e-9)
    assert (whole.found(rates) >= rates).all() and (np.diff(whole.found(rates)) >= 0).all()
    assert whole.advantage >= (whole.found(rates) - rates).max() - 1e-3


def test_a_randomised_response_is_found_out_as_often_as_it_tells_the_truth():
    """Three answers, the true one e times as likely as each other: the best test believes the answer."""
    response, lie = RandomizedResponse(3, 3 / (2 + math.e)), 1 / (2 + math.e)
    risk = Risk.of_history({response: 1}, 1e-5)
    assert float(risk.found(lie)) == pytest.approx(math.e * lie, rel=1e-4)
    assert float(risk.found(lie / 10)) == pytest.approx(math.e * lie / 10, rel=1e-4)
    assert risk.advantage == pytest.approx((math.e - 1) * lie, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-9), (0.5, 1e-5), (3.0, 0.2), (30.0, 1e-6)])
def test_epsilon_and_delta_alone_allow_their_least_private_mechanism_and_no_more(epsilon, delta):
    """The best test of the mechanism that tells the truth with probability delta, else answers at random."""
    honest = (1 - delta) / (1 + math.exp(-epsilon))
    used = np.array([delta, honest, 1 - delta - honest, 0.0])
    rates = np.linspace(0, 1, 41)
    best = np.interp(rates, np.cumsum(used[::-1]), np.cumsum(used))
    best[0] = delta
    risk = Risk.of_budget(epsilon, delta)
    assert risk.found(rates) == pytest.approx(best, abs=1e-12) and (risk.found(rates) >= best - 1e-15).all()
    assert risk.advantage == pytest.approx(delta + (1 - delta) * math.tanh(epsilon / 2), abs=1e-12)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({}, "a training is missing; give sampling_rate, noise_multiplier and steps, or epsilon alone"),
        ({"sampling_rate": 0.1, "steps": 10}, "a training is missing"),
        ({"epsilon": 2.0, "steps": 10}, "epsilon is 2, which tells nothing of a training"),
        ({"epsilon": 2.0, "past": {}}, "epsilon is 2"),
        ({"epsilon": 2.0, "rows_per_person": 3}, "nor of a person with several records; leave out"),
        ({"epsilon": -2.0}, "epsilon is -2"),
    ],
)
def test_a_risk_is_of_a_training_or_of_an_epsilon(beside, said):
    with pytest.raises(ValueError, match=said):
        risk(**beside, delta=1e-5)


PAGE = (Path(__file__).parents[2] / "docs/how-to/choose-epsilon.md").read_text()
PROGRAM = re.search(r"```python\n(.*?)```", PAGE, flags=re.S)[1]
ROWS = {int(epsilon): re.findall(r"([\d.]+) %", row) for epsilon, row in re.findall(r"\| \*\*(\d)\*\* (.*)", PAGE)}


@pytest.mark.parametrize("epsilon", [1, 3, 8])
def test_the_page_about_choosing_says_what_its_program_computes(epsilon):
    computed = {}
    exec(PROGRAM.replace("epsilon=3", f"epsilon={epsilon}"), computed)
    e, delta = math.exp(epsilon), 1e-5
    most = min(1.0, e * 0.01 + delta, 1 - (0.99 - delta) / e)
    of_definition = (e + delta) / (1 + e), most, 0.01 * most / (0.01 * most + 0.99 * 0.01)
    here = computed["right"], float(computed["found"]), computed["alarms"]
    pairs = [(f"{100 * bound:.1f}", f"{100 * found:.1f}") for bound, found in zip(of_definition, here, strict=True)]
    assert ROWS[epsilon] == [figure for pair in pairs for figure in pair]
    assert all(found <= bound for bound, found in zip(of_definition, here, strict=True))
