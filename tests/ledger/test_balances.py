"""Balances are the sums of the charges, whatever happened: they are what a grant is decided on."""

import random

import pytest
from sqlalchemy import text

from fedprivacy.ledger import Allowance, ChargeState, Ledger, LedgerError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENTS = [PoissonSampledGaussian(0.1, 1.0), PoissonSampledGaussian(0.1, 2.0), PoissonSampledGaussian(0.2, 1.0)]
DATASETS = ["a", "b", "c"]


@pytest.fixture
def ledger(url):
    opened = Ledger(url)
    opened.open_budgets(dict.fromkeys(DATASETS, Allowance(PrivacyBudget(3.0, 1e-5), "adaptive")))
    return opened


def unlimited(*_):
    return 10**9


def added_up(ledger):
    """Steps and charges by dataset and mechanism, from the charges alone."""
    with ledger.database.reading() as connection:
        rows = connection.execute(
            text(
                "SELECT dataset_id, sampling_rate, noise_multiplier, SUM(steps), COUNT(*) FROM charges "
                "WHERE state != 'void' GROUP BY dataset_id, sampling_rate, noise_multiplier"
            )
        ).all()
    return {(d, PoissonSampledGaussian(q, s)): (steps, count) for d, q, s, steps, count in rows}


def held(ledger):
    """The same from the accounts."""
    accounts = ledger.accounts(DATASETS)
    return {(d, event): steps for d, account in accounts.items() for event, steps in account.history.items()}


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_charges_and_settlements_adds_up(ledger, seed):
    draw = random.Random(seed)
    for round in range(1, 60):
        some = draw.sample(DATASETS, draw.randint(1, 3))
        ledger.reserve(Attempt("run", round), draw.choice(EVENTS), {d: draw.randint(1, 9) for d in some}, unlimited)
        for _ in range(2):
            state = draw.choice([ChargeState.VOID, ChargeState.COMMITTED])
            ledger.settle(Attempt("run", draw.randint(1, round)), draw.sample(DATASETS, draw.randint(1, 3)), state)
    assert held(ledger) == {key: steps for key, (steps, _) in added_up(ledger).items()}
    counts = {d: sum(n for (dataset, _), (_, n) in added_up(ledger).items() if dataset == d) for d in DATASETS}
    assert {d: account.rounds for d, account in ledger.accounts(DATASETS).items()} == {
        d: n for d, n in counts.items() if n
    }
    verify_ledger(ledger)


def test_each_dataset_is_charged_for_its_own_event(ledger):
    ledger.reserve(Attempt("run", 1), dict(zip(DATASETS, EVENTS, strict=True)), dict.fromkeys(DATASETS, 4), unlimited)
    assert held(ledger) == dict.fromkeys(zip(DATASETS, EVENTS, strict=True), 4)


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
def test_no_run_begins_on_balances_that_contradict_the_charges(ledger, damage):
    ledger.reserve(Attempt("run", 1), EVENTS[0], {"a": 5, "b": 7}, unlimited)
    ledger.database.write(lambda connection, _: connection.execute(text(damage)))
    with pytest.raises(LedgerError, match=r"balances contradict its charges.*ledger verify"):
        ledger.open_run("another", "digits", "3 parts")


def test_a_charge_that_fails_leaves_the_balance_as_it_was(ledger):
    ledger.reserve(Attempt("run", 1), EVENTS[0], {"a": 5}, unlimited)
    with pytest.raises(LedgerError, match="charged before"):
        ledger.reserve(Attempt("run", 1), EVENTS[0], {"b": 1, "a": 5}, unlimited)
    assert held(ledger) == {("a", EVENTS[0]): 5}
