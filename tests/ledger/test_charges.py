"""Charges at the edges: nothing left of them, and as many as an account holds."""

import pytest

from fedprivacy.ledger import ChargeState
from fedprivacy.ledger.charges import MOST_STEPS
from fedprivacy.ledger.errors import AccountError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from tests.ledger.acts import EVENT

RUN, ANOTHER = ("run", EVENT), ("another", EVENT)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_a_dataset_whose_charges_are_all_void_has_spent_nothing_and_is_bound_to_no_mechanism(ledger):
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 5}, lambda *_: 5)
    ledger.settle(Attempt("run", 1), ["a"], ChargeState.VOID)
    assert ledger.accounts(["a", "b"]) == {}


def test_an_account_holds_as_many_steps_as_the_accountants_compose_and_not_one_more(ledger):
    assert MOST_STEPS == 2**31 - 1
    assert ledger.reconcile("a", {RUN: MOST_STEPS}) == MOST_STEPS
    with pytest.raises(AccountError, match="claims steps"):
        ledger.reconcile("a", {ANOTHER: 1})
    assert ledger.accounts(["a"])["a"].history == {EVENT: MOST_STEPS}


def test_claims_that_grow_are_charged_by_what_they_grew_each_in_its_own_run(ledger):
    """A client comes back again and again with more: nothing is counted twice, and nothing is lost."""
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 5, "b": 5}, lambda *_: 5)
    assert ledger.reconcile("a", {RUN: 7}) == 2
    assert ledger.reconcile("a", {RUN: 7, ANOTHER: 3}) == 3
    assert ledger.reconcile("a", {RUN: 8, ANOTHER: 3}) == 1
    assert ledger.reconcile("a", {RUN: 2}) == 0
    assert ledger.accounts(["a"])["a"].history == {EVENT: 11}
    assert ledger.accounts(["b"])["b"].history == {EVENT: 5}
    verify_ledger(ledger)
