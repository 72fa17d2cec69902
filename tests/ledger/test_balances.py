"""Balances are the sums of the charges, whatever happened: they are what a grant is decided on."""

import random
import sqlite3

import pytest

from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import PoissonSampledGaussian
from fedprivacy.ledger import Allowance, ChargeState, Ledger
from fedprivacy.ledger.store import database_file

EVENTS = [PoissonSampledGaussian(0.1, 1.0), PoissonSampledGaussian(0.1, 2.0), PoissonSampledGaussian(0.2, 1.0)]
DATASETS = ["a", "b", "c"]


@pytest.fixture
def url(tmp_path):
    opened = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger(opened).open_budgets(dict.fromkeys(DATASETS, Allowance(PrivacyBudget(3.0, 1e-5), "adaptive")))
    return opened


def unlimited(_, history):
    return 10**9


def added_up(url):
    """Steps and charges by dataset and mechanism, from the charges alone."""
    with sqlite3.connect(database_file(url)) as connection:
        rows = connection.execute(
            "SELECT dataset_id, sampling_rate, noise_multiplier, SUM(steps), COUNT(*) FROM charges "
            "WHERE state != 'void' GROUP BY dataset_id, sampling_rate, noise_multiplier"
        ).fetchall()
    return {(d, PoissonSampledGaussian(q, s)): (steps, count) for d, q, s, steps, count in rows}


def held(url):
    """The same from the accounts."""
    accounts = Ledger(url).accounts(DATASETS)
    return {(d, event): steps for d, account in accounts.items() for event, steps in account.history.items()}


def change(url, statement, *values):
    with sqlite3.connect(database_file(url)) as connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_charges_and_settlements_adds_up(url, seed):
    draw, ledger = random.Random(seed), Ledger(url)
    for round in range(1, 60):
        some = draw.sample(DATASETS, draw.randint(1, 3))
        ledger.reserve("run", round, draw.choice(EVENTS), {d: draw.randint(1, 9) for d in some}, unlimited)
        for _ in range(2):
            state = draw.choice([ChargeState.VOID, ChargeState.COMMITTED])
            ledger.settle("run", draw.randint(1, round), draw.sample(DATASETS, draw.randint(1, 3)), state)
    assert held(url) == {key: steps for key, (steps, _) in added_up(url).items()}
    counts = {d: sum(n for (dataset, _), (_, n) in added_up(url).items() if dataset == d) for d in DATASETS}
    assert {d: account.rounds for d, account in ledger.accounts(DATASETS).items()} == {
        d: n for d, n in counts.items() if n
    }


def test_each_dataset_is_charged_for_its_own_event(url):
    ledger = Ledger(url)
    ledger.reserve("run", 1, dict(zip(DATASETS, EVENTS, strict=True)), dict.fromkeys(DATASETS, 4), unlimited)
    assert held(url) == dict.fromkeys(zip(DATASETS, EVENTS, strict=True), 4)


def test_a_ledger_from_before_there_were_balances_is_added_up(url):
    Ledger(url).reserve("run", 1, EVENTS[0], {"a": 5, "b": 7}, unlimited)
    change(url, "DROP TABLE balances")
    assert held(url) == {("a", EVENTS[0]): 5, ("b", EVENTS[0]): 7}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE balances SET steps = 1",
        "UPDATE balances SET charges = 0",
        "DELETE FROM balances WHERE dataset_id = 'a'",
        "UPDATE balances SET dataset_id = 'c' WHERE dataset_id = 'b'",
        "UPDATE balances SET noise_multiplier = 50",
    ],
)
def test_balances_that_contradict_the_charges_are_added_up_anew(url, damage):
    Ledger(url).reserve("run", 1, EVENTS[0], {"a": 5, "b": 7}, unlimited)
    change(url, damage)
    assert held(url) == {("a", EVENTS[0]): 5, ("b", EVENTS[0]): 7}


def test_a_charge_that_fails_leaves_the_balance_as_it_was(url):
    ledger = Ledger(url)
    ledger.reserve("run", 1, EVENTS[0], {"a": 5}, unlimited)
    with pytest.raises(ValueError, match="charged before"):
        ledger.reserve("run", 1, EVENTS[0], {"b": 1, "a": 5}, unlimited)
    assert held(url) == {("a", EVENTS[0]): 5}
