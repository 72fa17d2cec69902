"""Balances are the sums of the charges, whatever happened: they are what a grant is decided on."""

import random
from collections import Counter

import pytest
from sqlalchemy import text

from fedprivacy.ledger import ChargeState, LedgerError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import PoissonSampledGaussian
from tests.ledger.acts import query, unlimited

EVENTS = [PoissonSampledGaussian(0.1, 1.0), PoissonSampledGaussian(0.1, 2.0), PoissonSampledGaussian(0.2, 1.0)]
DATASETS = ["a", "b", "c"]


def test_any_order_of_charges_and_settlements_adds_up(ledger):
    draw = random.Random(0)
    for round in range(1, 30):
        events = {d: draw.choice(EVENTS) for d in draw.sample(DATASETS, draw.randint(1, 3))}
        ledger.reserve(Attempt("run", round), events, {d: draw.randint(1, 9) for d in events}, unlimited)
        for _ in range(2):
            state = draw.choice([ChargeState.VOID, ChargeState.COMMITTED])
            ledger.settle(Attempt("run", draw.randint(1, round)), draw.sample(DATASETS, draw.randint(1, 3)), state)
    history, rounds = {d: Counter() for d in DATASETS}, Counter()
    charges = "SELECT dataset_id, sampling_rate, noise_multiplier, steps FROM charges WHERE state != 'void'"
    for dataset, rate, noise, steps in query(ledger, charges):
        history[dataset][PoissonSampledGaussian(rate, noise)] += steps
        rounds[dataset] += 1
    accounts = ledger.accounts(DATASETS)
    assert {d: account.history for d, account in accounts.items()} == history
    assert {d: account.rounds for d, account in accounts.items()} == rounds
    verify_ledger(ledger)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE balances SET steps = 1",
        "UPDATE balances SET charges = 0",
        "DELETE FROM balances WHERE dataset_id = 'a'",
        "UPDATE balances SET dataset_id = 'c' WHERE dataset_id = 'b'",
        "UPDATE balances SET noise_multiplier = 50",
        "INSERT INTO balances VALUES ('b', 0.2, 2.0, 'zero-out', -100, 0)",  # would hide a later charge
    ],
)
def test_no_run_begins_on_balances_that_contradict_the_charges(ledger, damage):
    ledger.reserve(Attempt("run", 1), EVENTS[0], {"a": 5, "b": 7}, unlimited)
    ledger.database.write(lambda connection, _: connection.execute(text(damage)))
    with pytest.raises(LedgerError, match=r"balances contradict its charges.*ledger verify"):
        ledger.open_run("another", "digits", "3 parts")
