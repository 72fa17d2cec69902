"""A second reading reads only the accounts that the journal has named since the first, and misses none."""

import pytest

from fedprivacy.ledger import Allowance, ChargeState, Ledger
from fedprivacy.ledger.journal import Head
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from tests.ledger.acts import EVENT, OTHER, copied, fill_and_ask, journal_of, unlimited

BUDGET = PrivacyBudget(3.0, 1e-5)
DATASETS = ("a", "b", "c", "d")
ROUND = Attempt("run", 1)


@pytest.fixture
def ledger(url):
    ledger = Ledger(url)
    ledger.open_budgets(dict.fromkeys(DATASETS, Allowance(BUDGET, "adaptive")))
    ledger.reserve(ROUND, EVENT, {"a": 2, "b": 2}, unlimited)
    return ledger


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda ledger: None, set()),
        (lambda ledger: ledger.open_run("another", "digits", "4 clients"), set()),
        (lambda ledger: ledger.bind_keys({"somebody": "00"}), set()),
        (lambda ledger: ledger.reserve(Attempt("another", 1), OTHER, {"b": 3, "c": 1}, unlimited), {"b", "c"}),
        (lambda ledger: ledger.settle(ROUND, ["a"], ChargeState.VOID), {"a"}),
        (lambda ledger: ledger.settle(ROUND, ["b"], ChargeState.COMMITTED), {"b"}),
        (lambda ledger: ledger.reconcile("d", {("third", EVENT): 5}), {"d"}),
        (lambda ledger: ledger.set_budget("c", PrivacyBudget(1.0, 1e-5), None, "less"), {"c"}),
        (lambda ledger: ledger.open_budgets({"new": Allowance(BUDGET, "adaptive")}), set()),
    ],
)
def test_what_another_program_writes_is_read_again_and_nothing_else(act, named, ledger, url):
    known = set(DATASETS)
    first = ledger.read_changed(known, Head(), set())
    assert set(first.dataset_ids) == known and set(first.accounts) == {"a", "b"}
    another = Ledger(url)
    act(another)
    again = ledger.read_changed(known, first.head, set())
    assert set(again.dataset_ids) == named
    assert again.accounts == {d: account for d, account in another.accounts(DATASETS).items() if d in named}
    assert again.allowances == another.allowances(named)
    assert {**first.accounts, **again.accounts}.keys() >= another.accounts(DATASETS).keys()
    unchanged = known - named
    assert {d: first.accounts.get(d) for d in unchanged} == {d: another.accounts([d]).get(d) for d in unchanged}
    assert ledger.read_changed(known, again.head, set()).dataset_ids == ()


@pytest.mark.parametrize("since", [Head(2, "f" * 64), Head(99, "f" * 64)], ids=["rewritten", "an older copy"])
def test_of_a_journal_that_does_not_hold_what_was_read_before_everything_is_read(since, ledger):
    assert set(ledger.read_changed(set(DATASETS), since, set()).dataset_ids) == set(DATASETS)


def test_it_is_known_of_every_kind_of_entry_whose_account_it_changes(url):
    ledger = copied(fill_and_ask, url)
    _, _, hash = journal_of(ledger)[0]
    assert set(ledger.read_changed({"a", "b", "c"}, Head(1, hash), set()).dataset_ids) == {"a", "b"}
