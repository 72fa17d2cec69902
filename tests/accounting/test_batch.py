"""Many histories at once: the same bound as one by one, and never below the truth."""

import numpy as np
import pytest

from fedprivacy.accounting import batch, pld, spectra
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.values.events import (
    Event,
    History,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
)
from tests.accounting import oracles


def epsilons(histories: list[History], deltas: float | list[float]) -> np.ndarray:
    composer = BatchComposer()
    return composer.epsilons(composer.counts(histories), np.broadcast_to(np.asarray(deltas, float), len(histories)))


def epsilon(history: History, delta: float) -> float:
    return float(epsilons([history], delta)[0])


def drawn(rng: np.random.Generator) -> Event:
    return PoissonSampledGaussian(float(10.0 ** rng.uniform(-3.0, -0.3)), float(rng.uniform(0.5, 4.0)))


def test_histories_cost_what_pld_says() -> None:
    rng, of_each = np.random.default_rng(0), 25
    histories: list[History] = [{drawn(rng): int(10.0 ** rng.uniform(0.0, 4.3))} for _ in range(of_each)]
    several = [[drawn(rng) for _ in range(rng.integers(2, 6))] for _ in range(of_each)]
    histories += [{event: int(10.0 ** rng.uniform(0.5, 3.0)) for event in events} for events in several]
    deltas = (10.0 ** -rng.uniform(3.0, 10.0, len(histories))).tolist()
    one_by_one = [pld.epsilon(history, delta) for history, delta in zip(histories, deltas, strict=True)]
    ratio = epsilons(histories, deltas) / np.array(one_by_one)
    assert (ratio >= 1.0 - 1e-3).all()  # its grid is never coarser than theirs
    assert (ratio[:of_each] <= 1.0 + 1e-4).all() and (ratio <= 1.0 + 1e-3).all()


def test_never_below_the_exact_privacy_loss() -> None:
    history, delta = {PoissonSampledGaussian(0.02, 1.3): 400, PoissonSampledGaussian(0.005, 0.9): 700}, 1e-12
    assert 0.95 <= oracles.exact_share(history, epsilon(history, delta), delta) <= 1.0


def test_a_history_costs_the_same_in_any_company() -> None:
    rng = np.random.default_rng(2)
    histories = [{drawn(rng): int(rng.integers(20, 2_000))} for _ in range(40)]
    alone = np.concatenate([epsilons([history], 1e-5) for history in histories])
    assert epsilons(histories, 1e-5) == pytest.approx(alone, rel=1e-6)
    usual, unplanned = histories[0], {PoissonSampledGaussian(0.5, 0.03): 1}
    found = epsilons([usual, unplanned, usual], 1e-5)
    assert found[0] == found[2] == pytest.approx(alone[0], rel=1e-9)


def test_frequencies_left_out_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few frequencies that they matter, epsilon grows and stays a bound."""
    history = {PoissonSampledGaussian(0.02, 1.1): 500}
    (sharp,) = epsilons([history], 1e-5)
    monkeypatch.setattr(spectra, "VANISHED", -4.0)
    monkeypatch.setattr(batch, "_NEGLIGIBLE", np.inf)
    (charged,) = epsilons([history], 1e-5)
    assert charged > sharp * (1.0 + 1e-4)
    assert charged < sharp * 1.2


def test_the_direction_that_adds_a_record_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first direction's losses halved, the second decides."""
    history = {PoissonSampledGaussian(0.3, 2.0): 100}
    found = batch.Curves.epsilons
    monkeypatch.setattr(batch.Curves, "epsilons", lambda self: 0.5 * found(self) if _removes(self) else found(self))
    calls: list[bool] = []

    def _removes(_: object) -> bool:
        calls.append(True)
        return len(calls) == 1

    (epsilon,) = epsilons([history], 1e-5)
    exact = oracles.composed_delta(history, float(epsilon), remove=False)
    assert exact == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.parametrize(
    "history",
    [
        {},
        {PoissonSampledGaussian(0.5, 0.3): 2_000},  # epsilon above 500
        {PoissonSampledGaussian(1e-3, 1e-3): 10},  # noise that the grid does not suit
        {PoissonSampledGaussian(1e-7, 5.0): 1_000_000},
        {PoissonSampledGaussian(0.01, 8.0): 2_000_000_000},
        {PoissonSampledGaussian(1.0, 1_000.0): 1},
        {PoissonSampledGaussian(0.5, 0.03): 1},  # losses that do not vary
        {PoissonSampledGaussian(0.1, 0.02): 20},
        {PoissonSampledGaussian(1e-5, 0.03): 579},
        {PoissonSampledGaussian(1e-170, 1.0): 3},
        {PoissonSampledGaussian(1.0, 1e170): 3},
        {PoissonSampledLaplace(1.0, 1e300): 2},
        {PoissonSampledLaplace(1.0, 1e-300): 2},
        {RandomizedResponse(2, 1.0, NeighbouringRelation.REPLACE_ONE): 10},
    ],
)
def test_extremes_are_answered(history: History) -> None:
    coarse = sum(history.values()) > 10**9  # a grid of `pld`, after so many steps
    tolerance = 2e-3 if coarse else 1e-3
    for delta in (0.1, 1e-5):
        assert epsilon(history, delta) == pytest.approx(pld.epsilon(history, delta), rel=tolerance, abs=1e-12)


def test_one_rare_event_with_next_to_no_noise_does_not_fill_the_memory() -> None:
    history: History = {PoissonSampledGaussian(1.0, 1e-5): 1, PoissonSampledGaussian(0.5, 1.0): 100_000}
    assert epsilon(history, 1e-5) == pytest.approx(pld.epsilon(history, 1e-5), rel=1e-2)


@pytest.mark.parametrize(
    ("history", "delta"),
    [
        ({PoissonSampledGaussian(0.0406378, 2.19076): 3}, 3.08e-28),
        ({PoissonSampledGaussian(0.0364013, 1.513774): 2}, 2.9e-23),
        ({PoissonSampledLaplace(1.0, 119.4353): 19}, 5.2e-17),
    ],
)
def test_as_tight_as_pld_for_few_steps_and_tiny_deltas(history: History, delta: float) -> None:
    assert epsilon(history, delta) <= pld.epsilon(history, delta) * (1.0 + 1e-3)
