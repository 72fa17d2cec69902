"""Inputs with which the accountant of populations once understated a loss, lost a charge, or fell over."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedprivacy.accounting import pld
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.population import MOST_STEPS, PopulationAccountant
from fedprivacy.accounting.targets import step_quotas
from fedprivacy.values.events import (
    History,
    NeighbouringRelation,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
)


def epsilon(history: History, delta: float) -> float:
    composer = BatchComposer()
    return float(composer.epsilons(composer.counts([history]), np.array([delta]))[0])


@pytest.mark.parametrize("grid", [1.01, 1.05])
def test_what_was_rounded_is_not_rounded_again(grid: float, tmp_path: Path) -> None:
    """Rounded twice, two rates fell together and every later mechanism was taken for another."""
    rng = np.random.default_rng(0)
    events = [
        PoissonSampledGaussian(float(q), s)
        for q, s in zip(10.0 ** -rng.uniform(0.3, 4.0, 300), [1.0, 3.0] * 150, strict=True)
    ]
    accounts = PopulationAccountant(rate_grid=grid)
    rows = accounts.enrol([f"shard-{n}" for n in range(300)], 10.0 ** -rng.uniform(3.0, 9.0, 300))
    accounts.record(rows, accounts.mechanisms(events), 500)
    accounts.save(tmp_path / "accounts.npz")
    again = PopulationAccountant.load(tmp_path / "accounts.npz")
    assert [again.history(row) for row in rows.tolist()] == [accounts.history(row) for row in rows.tolist()]
    assert again.epsilons(rows[:20]) == pytest.approx(accounts.epsilons(rows[:20]), rel=1e-9)
    grid_events = [next(iter(accounts.history(row))) for row in rows.tolist()]
    assert again.mechanisms(grid_events).tolist() == accounts.mechanisms(grid_events).tolist()


def test_a_delta_on_the_grid_stays_there(tmp_path: Path) -> None:
    accounts = PopulationAccountant(rate_grid=1.01)
    accounts.enrol(["a", "b", "c"], [1e-6, 1e-7, 1e-4])
    accounts.save(tmp_path / "accounts.npz")
    again = PopulationAccountant.load(tmp_path / "accounts.npz")
    assert again.enrol(["a", "b", "c"], [1e-6, 1e-7, 1e-4]).tolist() == [0, 1, 2]


def test_names_are_kept_to_the_letter(tmp_path: Path) -> None:
    accounts = PopulationAccountant()
    accounts.enrol(["a", "a\0", "hôpital \n"], 1e-5)
    accounts.save(tmp_path / "accounts.npz")
    assert PopulationAccountant.load(tmp_path / "accounts.npz").enrol(["a\0", "hôpital \n"], 1e-5).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("rows", "mechanisms", "steps"),
    [
        ([2], 0, 5),
        ([-1], 0, 5),
        ([0.9], 0, 5),
        ([0], [-1], 5),
        ([0], [2**24], 5),
        ([0], 1, 5),
        ([0, 0], 0, [2**62, 2**62]),
        ([0], 0, np.array([2**63], dtype=np.uint64)),
        ([0, 1], 0, -1),
        ([0, 1], 0, 1.5),
        ([0, 1], 0, [5, MOST_STEPS + 1]),
        ([0, 0], 0, [MOST_STEPS, 1]),
    ],
)
@pytest.mark.parametrize("method", ["record", "restate"])
def test_a_charge_that_is_refused_leaves_no_trace(method: str, rows: object, mechanisms: object, steps: object) -> None:
    accounts = PopulationAccountant()
    mine = accounts.enrol(["a", "b"], 1e-5)
    number = accounts.mechanisms([PoissonSampledGaussian(0.01, 1.0)])
    accounts.record(mine, number, 100)
    before = accounts.epsilons()
    with pytest.raises(ValueError, match=r"choose integers|the most is"):
        getattr(accounts, method)(rows, mechanisms, steps)
    accounts.enrol(["new"], 1e-5)
    assert accounts.epsilons().tolist() == [*before, 0.0]


def test_nothing_may_be_recorded() -> None:
    accounts = PopulationAccountant()
    accounts.record([], [], [])
    accounts.restate([], [], [])
    assert accounts.epsilons().size == 0


@pytest.mark.parametrize("delta", [0.1, 1e-5])
@pytest.mark.parametrize(
    "history",
    [
        {PoissonSampledGaussian(0.5, 0.03): 1},
        {PoissonSampledGaussian(0.1, 0.02): 20},
        {PoissonSampledGaussian(1e-5, 0.03): 579},
        {PoissonSampledGaussian(1e-170, 1.0): 3},
        {PoissonSampledGaussian(1.0, 1e170): 3},
        {PoissonSampledLaplace(1.0, 1e300): 2},
        {PoissonSampledLaplace(1.0, 1e-300): 2},
        {RandomizedResponse(2, 1.0, NeighbouringRelation.REPLACE_ONE): 10},
    ],
)
def test_losses_that_do_not_vary_are_answered(history: History, delta: float) -> None:
    assert epsilon(history, delta) == pytest.approx(pld.epsilon(history, delta), rel=1e-3, abs=1e-12)


def test_one_client_that_cannot_be_planned_leaves_the_others_alone() -> None:
    composer = BatchComposer()
    usual: History = {PoissonSampledGaussian(0.01, 1.0): 500}
    counts = composer.counts([usual, {PoissonSampledGaussian(0.5, 0.03): 1}, usual])
    found = composer.epsilons(counts, np.full(3, 1e-5))
    assert found[0] == found[2] == pytest.approx(epsilon(usual, 1e-5), rel=1e-9)


def test_one_rare_event_with_next_to_no_noise_does_not_fill_the_memory() -> None:
    history: History = {PoissonSampledGaussian(1.0, 1e-5): 1, PoissonSampledGaussian(0.5, 1.0): 100_000}
    assert epsilon(history, 1e-5) == pytest.approx(pld.epsilon(history, 1e-5), rel=1e-2)


@pytest.mark.parametrize(
    ("history", "delta"),
    [
        ({PoissonSampledGaussian(0.0406378, 2.19076): 3}, 3.08e-28),
        ({PoissonSampledGaussian(0.0621677, 2.36023): 2}, 9.4e-19),
        ({PoissonSampledGaussian(0.0836980, 3.593799): 2}, 2.85e-27),
        ({PoissonSampledGaussian(0.0364013, 1.513774): 2}, 2.9e-23),
        ({PoissonSampledLaplace(1.0, 119.4353): 19}, 5.2e-17),
    ],
)
def test_as_tight_as_pld_for_few_steps_and_tiny_deltas(history: History, delta: float) -> None:
    assert epsilon(history, delta) <= pld.epsilon(history, delta) * (1.0 + 1e-3)


def test_counts_made_before_an_event_came_are_still_good() -> None:
    composer = BatchComposer()
    first = composer.counts([{PoissonSampledGaussian(0.01, 1.0): 500}])
    composer.columns([PoissonSampledGaussian(0.02, 1.0)])
    assert composer.epsilons(first, np.array([1e-5]))[0] > 0.0


def test_the_counts_of_the_caller_are_left_as_they_are() -> None:
    composer = BatchComposer()
    columns = composer.columns([PoissonSampledGaussian(0.01, 1.0), PoissonSampledGaussian(0.02, 1.0)])
    counts = csr_array((np.array([5.0, 0.0]), columns, np.array([0, 2])), shape=(1, 2))
    composer.epsilons(counts, np.array([1e-5]))
    assert counts.data.tolist() == [5.0, 0.0]


def test_quotas_of_extreme_events() -> None:
    free = RandomizedResponse(2, 1.0, NeighbouringRelation.REPLACE_ONE)
    events = [free, PoissonSampledGaussian(0.01, 1e-200), PoissonSampledGaussian(1e-200, 1.0)]
    quotas = step_quotas(events, 5.0, 1e-5)
    assert quotas[1] == 0
    assert min(quotas[0], quotas[2]) >= 10**9
