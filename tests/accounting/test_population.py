"""A population's accounts: what was recorded, incrementally."""

import numpy as np
import pytest

from fedprivacy.accounting import pld
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.population import MOST_STEPS, PopulationAccountant
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian

EVENTS = [PoissonSampledGaussian(0.01, 1.1), PoissonSampledGaussian(0.023, 0.9), PoissonSampledGaussian(0.2, 3.0)]


def population(clients: int = 6) -> tuple[PopulationAccountant, np.ndarray, np.ndarray]:
    accounts = PopulationAccountant()
    rows = accounts.enrol([f"cancer/client-{n}" for n in range(clients)], 1e-5)
    return accounts, rows, accounts.mechanisms(EVENTS)


def test_epsilons_are_those_of_the_histories() -> None:
    accounts, rows, (a, b, c) = population()
    accounts.record(rows[:5], [a, a, b, c, c], [100, 250, 70, 40, 900])
    accounts.record(rows[[1, 3, 3]], [b, a, a], [60, 30, 30])
    accounts.record([], [], [])
    expected = [pld.epsilon(accounts.history(row), 1e-5) for row in rows.tolist()]
    assert accounts.history(1) == {EVENTS[0]: 250, EVENTS[1]: 60}
    assert accounts.epsilons() == pytest.approx(expected, rel=1e-4)
    assert accounts.epsilons()[5] == 0.0


def test_restated_accounts_lose_what_is_not_stated_and_the_others_keep_theirs() -> None:
    accounts, rows, (a, b, _) = population()
    accounts.record(np.repeat(rows, 2), np.tile([a, b], 6), np.tile([250, 60], 6))
    accounts.epsilons()
    accounts.restate(rows[[0, 0, 1, 1, 2]], [a, b, a, b, b], [900, 60, 250, 7, 60], accounts=rows[:4])
    assert [accounts.history(row) for row in (2, 3)] == [{EVENTS[1]: 60}, {}]
    assert accounts.history(4) == {EVENTS[0]: 250, EVENTS[1]: 60}
    expected = [pld.epsilon(accounts.history(row), 1e-5) for row in rows.tolist()]
    assert accounts.epsilons() == pytest.approx(expected, rel=1e-4)


def test_each_history_that_has_changed_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, rows, (a, b, _) = population(clients=10_000)
    asked: list[int] = []
    compute = BatchComposer.epsilons
    monkeypatch.setattr(
        BatchComposer,
        "epsilons",
        lambda self, counts, deltas: asked.append(len(deltas)) or compute(self, counts, deltas),
    )
    accounts.record(rows, np.where(rows % 2, a, b), 50)
    accounts.epsilons()
    accounts.record(rows[:3], b, [7, 8, 9])
    accounts.epsilons()
    accounts.epsilons()
    assert (asked[0], sum(asked)) == (2, 2 + 3)


def test_every_client_has_its_own_delta() -> None:
    accounts = PopulationAccountant()
    deltas = 10.0 ** -np.linspace(3.0, 9.0, 300)  # more than are numbered
    rows = accounts.enrol([f"shard-{n}" for n in range(300)], deltas)
    accounts.record(rows, accounts.mechanisms(EVENTS[:1]), 500)
    assert (np.diff(accounts.epsilons()) > 0.0).all()
    assert accounts.epsilons()[-1] == pytest.approx(pld.epsilon({EVENTS[0]: 500}, 1e-9), rel=1e-4)


@pytest.mark.parametrize("history", [{EVENTS[0]: 500}, {EVENTS[0]: 500, EVENTS[2]: 40}], ids=["one event", "two"])
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
    assert accounts.enrol(["cancer/client-3", "cancer/client-9"], 1e-5).tolist() == [3, 6]
    with pytest.raises(ValueError, match=r"client-0 has delta 1e-05 and comes with 0.001 now"):
        accounts.enrol(["new", "cancer/client-0"], 1e-3)
    assert len(accounts) == len(rows) + 1
    with pytest.raises(ValueError, match="delta is 2"):
        accounts.enrol(["other"], 2.0)
    assert len(accounts) == len(rows) + 1


def test_names_are_kept_to_the_letter() -> None:
    accounts, clients = PopulationAccountant(), (["a", "a\0", "hôpital \n"], [1e-6, 1e-7, 1e-4])
    assert accounts.enrol(*clients).tolist() == accounts.enrol(*clients).tolist() == [0, 1, 2]


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
