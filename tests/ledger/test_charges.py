"""What charges add up to at the edges: nothing left of them, and as many as an account holds."""

import pytest

from fedprivacy.ledger import Allowance, ChargeState, Ledger
from fedprivacy.ledger.charges import MOST_STEPS
from fedprivacy.ledger.errors import AccountError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.1, 1.0)
RUN, ANOTHER = ("run", EVENT), ("another", EVENT)


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    opened.open_budgets(dict.fromkeys("ab", Allowance(PrivacyBudget(3.0, 1e-5), "fixed-mechanism")))
    return opened


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
