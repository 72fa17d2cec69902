"""Many histories at once, of a population too: the same bound as one by one, and never below the truth."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedprivacy.accounting import batch, pld, spectra
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.population import MOST_STEPS, PopulationAccountant
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


EVERYDAY = (0.1, 1e-5)


@pytest.mark.parametrize(
    ("history", "deltas"),
    [
        ({}, EVERYDAY),
        ({PoissonSampledGaussian(0.5, 0.3): 2_000}, EVERYDAY),  # epsilon above 500
        ({PoissonSampledGaussian(1e-3, 1e-3): 10}, EVERYDAY),  # noise that the grid does not suit
        ({PoissonSampledGaussian(0.5, 0.03): 1}, EVERYDAY),  # losses that do not vary
        ({PoissonSampledGaussian(1e-170, 1.0): 3}, EVERYDAY),
        ({PoissonSampledGaussian(1.0, 1e170): 3}, EVERYDAY),
        ({PoissonSampledLaplace(1.0, 1e-300): 2}, EVERYDAY),
        ({RandomizedResponse(2, 1.0, NeighbouringRelation.REPLACE_ONE): 10}, EVERYDAY),
        ({PoissonSampledGaussian(0.0364013, 1.513774): 2}, [2.9e-23]),  # few steps and tiny deltas
        ({PoissonSampledLaplace(1.0, 119.4353): 19}, [5.2e-17]),
    ],
)
def test_extremes_cost_what_pld_says(history: History, deltas: Sequence[float]) -> None:
    for delta in deltas:
        assert epsilon(history, delta) == pytest.approx(pld.epsilon(history, delta), rel=1e-3, abs=1e-12)


# --- a population's accounts: what was recorded, incrementally ------------------------------------------------------

KINDS = [PoissonSampledGaussian(0.01, 1.1), PoissonSampledGaussian(0.023, 0.9), PoissonSampledGaussian(0.2, 3.0)]


def population(clients: int = 6) -> tuple[PopulationAccountant, np.ndarray, np.ndarray]:
    accounts = PopulationAccountant()
    rows = accounts.enrol([f"cancer/client-{n}" for n in range(clients)], 1e-5)
    return accounts, rows, accounts.mechanisms(KINDS)


def test_restated_accounts_lose_what_is_not_stated_and_the_others_keep_theirs() -> None:
    accounts, rows, (a, b, _) = population()
    accounts.record(np.repeat(rows, 2), np.tile([a, b], 6), np.tile([200, 60], 6))
    accounts.record(rows, a, 50)
    accounts.epsilons()
    accounts.restate(rows[[0, 0, 1, 1, 2]], [a, b, a, b, b], [900, 60, 250, 7, 60], accounts=rows[:4])
    assert [accounts.history(row) for row in (2, 3)] == [{KINDS[1]: 60}, {}]
    assert accounts.history(4) == {KINDS[0]: 250, KINDS[1]: 60}
    expected = [pld.epsilon(accounts.history(row), 1e-5) for row in rows.tolist()]
    assert accounts.epsilons() == pytest.approx(expected, rel=1e-4)


def test_every_client_has_its_own_delta() -> None:
    accounts = PopulationAccountant()
    deltas = 10.0 ** -np.linspace(3.0, 9.0, 300)  # more than are numbered
    rows = accounts.enrol([f"shard-{n}" for n in range(300)], deltas)
    accounts.record(rows, accounts.mechanisms(KINDS[:1]), 500)
    assert (np.diff(accounts.epsilons()) > 0.0).all()
    assert accounts.epsilons()[-1] == pytest.approx(pld.epsilon({KINDS[0]: 500}, 1e-9), rel=1e-4)


@pytest.mark.parametrize("history", [{KINDS[0]: 500}, {KINDS[0]: 500, KINDS[2]: 40}], ids=["one event", "two"])
def test_the_same_steps_at_another_delta_have_another_epsilon(history: dict[PoissonSampledGaussian, int]) -> None:
    accounts = PopulationAccountant()
    events, steps = accounts.mechanisms(list(history)), list(history.values())
    for names, deltas in ((["a", "b", "c"], [1e-5, 1e-9, 1e-6]), (["between"], [1e-7])):  # when the first are known
        rows = accounts.enrol(names, deltas)
        accounts.record(np.repeat(rows, len(events)), np.tile(events, len(rows)), np.tile(steps, len(rows)))
        expected = pytest.approx([pld.epsilon(history, delta) for delta in deltas], rel=1e-4)
        assert [*accounts.epsilons(rows[:1]), *accounts.epsilons(rows[1:])] == expected


def test_an_account_keeps_its_delta() -> None:
    accounts, rows, _ = population()
    assert accounts.enrol(["cancer/client-3", "cancer/client-3\0"], 1e-5).tolist() == [3, 6]
    with pytest.raises(ValueError, match=r"client-0 has delta 1e-05 and comes with 0.001 now"):
        accounts.enrol(["new", "cancer/client-0"], 1e-3)
    assert len(accounts) == len(rows) + 1
    with pytest.raises(ValueError, match="delta is 2"):
        accounts.enrol(["other"], 2.0)
    assert len(accounts) == len(rows) + 1


def test_another_relation_is_refused() -> None:
    with pytest.raises(ValueError, match="keep one population for each relation"):
        PopulationAccountant().mechanisms([PoissonSampledGaussian(0.1, 1.0, NeighbouringRelation.ZERO_OUT)])


@pytest.mark.parametrize(
    ("rows", "mechanisms", "steps"),
    [
        ([2], 0, 5),
        ([-1], 0, 5),
        ([0.9], 0, 5),
        ([0], [2**24], 5),
        ([0, 0], 0, [2**62, 2**62]),
        ([0], 0, np.array([2**63], dtype=np.uint64)),
        ([0, 1], 0, -1),
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
