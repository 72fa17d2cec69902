"""Processes that charge the same datasets at once share one budget, and nobody's charge is lost."""

import json
import random
from contextlib import suppress

from fedprivacy.ledger import ChargeState, Ledger, LedgerError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import UNNAMED
from tests.ledger.acts import ALLOWANCE, EVENT, OTHER, at_most
from tests.processes import at_once

QUOTA = 60
SMALL, LARGE = (4, 20, 8), (8, 100, 12)
"""Processes, datasets and rounds of each."""


def charge(url, run, datasets, rounds, told):
    """Serve a run: charge some datasets in each round; most of their receipts come."""
    ledger, draw, counted = Ledger(url), random.Random(run), dict.fromkeys(datasets, 0)
    with suppress(LedgerError):  # all take themselves for one run: whoever is first
        counted |= ledger.reserve(Attempt("one", 1), EVENT, {datasets[0]: 5}, at_most(QUOTA))
    for round in range(1, rounds + 1):
        event = draw.choice([EVENT, OTHER])
        wanted = {d: draw.randint(1, 9) for d in draw.sample(datasets, draw.randint(1, len(datasets)))}
        granted = ledger.reserve(Attempt(f"run-{run}", round), event, wanted, at_most(QUOTA))
        refused = {d for d in granted if draw.random() < 0.1}
        ledger.settle(Attempt(f"run-{run}", round), granted.keys() - refused, ChargeState.COMMITTED)
        ledger.settle(Attempt(f"run-{run}", round), refused, ChargeState.VOID)
        for dataset in granted.keys() - refused:
            counted[dataset] += granted[dataset]
    told.write_text(json.dumps(counted))
    ledger.close()


def test_what_a_client_claims_to_two_servers_at_once_is_charged_once(transactional_url):
    ledger = Ledger(transactional_url)
    ledger.open_budgets({"a": ALLOWANCE})
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 2}, at_most(QUOTA))
    ledger.close()
    claims = {("run", EVENT): 4, (UNNAMED, EVENT): 5, (UNNAMED, OTHER): 1}

    def serve():
        with Ledger(transactional_url) as opened:
            opened.reconcile("a", claims)

    assert at_once(serve, serve, serve) == [0, 0, 0]
    assert ledger.accounts(["a"])["a"].history == {EVENT: 9, OTHER: 1}
    verify_ledger(ledger)
    ledger.close()


def test_no_budget_is_overdrawn_and_no_charge_is_lost(transactional_url, tmp_path):
    url = transactional_url
    processes, count, rounds = LARGE if url.startswith("postgresql") else SMALL
    datasets = [f"d{number}" for number in range(count)]
    ledger = Ledger(url)
    ledger.open_budgets(dict.fromkeys(datasets, ALLOWANCE))
    ledger.close()
    told = [tmp_path / f"{number}.json" for number in range(processes)]
    acts = [lambda run=run, file=file: charge(url, run, datasets, rounds, file) for run, file in enumerate(told)]
    assert at_once(*acts) == [0] * processes
    counted = [json.loads(file.read_text()) for file in told]
    accounts = ledger.accounts(datasets)
    spent = {d: sum(accounts[d].history.values()) for d in datasets}
    assert spent == {d: sum(each[d] for each in counted) for d in datasets}
    assert max(spent.values()) == QUOTA  # the budget is what stopped them
    assert len(verify_ledger(ledger).replay.budgets) == count
    ledger.close()
