"""The central accountant alone: what it grants, gives back and shows, without a round around it."""

import datetime
import math

import pytest

from fedprivacy.accounting import FILTERS, pld
from fedprivacy.ledger import Allowance, Ledger, LedgerError
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian

EVENT = PoissonSampledGaussian(0.1, 1.0)
OTHER = PoissonSampledGaussian(0.1, 2.0)
LITTLE, LESS = PoissonSampledGaussian(0.1, 3.0), PoissonSampledGaussian(0.1, 2.5)
BUDGET = PrivacyBudget(3.0, 1e-5)
QUOTA = FILTERS["fixed-mechanism"](BUDGET).quota({}, EVENT)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


ROUND = Attempt("run", 1)


def enrolled(ledger, event=EVENT, budget=BUDGET):
    accountant = CentralAccountant(ledger, EVENT.relation, budget, "fixed-mechanism")
    accountant.enrol({"one": "a", "two": "b"}, {"one": event, "two": event})
    return accountant


def test_the_whole_quota_is_granted_over_all_runs_and_not_one_step_more(ledger):
    assert enrolled(ledger).grant(ROUND, {"one": QUOTA - 1}) == {"one": QUOTA - 1}
    another = enrolled(ledger)
    assert another.spent()["one"].steps_left == 1 and not another.spent()["one"].exhausted
    assert another.grant(Attempt("another", 1), {"one": 5, "two": 5}) == {"one": 1, "two": 5}
    assert another.grant(Attempt("another", 2), {"one": 1}) == {}
    spent = another.spent()["one"]
    assert (spent.steps, spent.steps_left, spent.exhausted, spent.rounds) == (QUOTA, 0, True, 2)
    assert spent.epsilon == pytest.approx(pld.epsilon({EVENT: QUOTA}, BUDGET.delta), rel=1e-5)
    assert spent.epsilon <= BUDGET.epsilon < pld.epsilon({EVENT: QUOTA + 1}, BUDGET.delta)


def test_the_charges_of_who_has_spent_most_are_those_of_all_runs(ledger):
    budget = PrivacyBudget(30.0, 1e-5)
    ledger.open_budgets({"b": Allowance(budget, "adaptive")})
    ledger.reserve(Attempt("before", 1), OTHER, {"b": 3}, lambda *_: 3)
    accountant = CentralAccountant(ledger, EVENT.relation, budget, "adaptive")
    assert accountant.most_charged() == {}
    accountant.enrol({"one": "a", "two": "b"}, {"one": EVENT, "two": EVENT})
    accountant.spent()
    assert accountant.most_charged() == {OTHER: 3}
    accountant.grant(ROUND, {"one": 2, "two": 2})
    accountant.spent()
    assert accountant.most_charged() == {OTHER: 3, EVENT: 2}
    accountant.grant(ROUND.again, {"one": 4})
    accountant.spent()
    assert accountant.most_charged() == {EVENT: 6}


def test_a_round_is_charged_once_unless_it_is_another_attempt_or_said_to_be_resumed(ledger):
    accountant = enrolled(ledger)
    assert accountant.grant(ROUND, {"one": 2}) == {"one": 2}
    with pytest.raises(LedgerError, match="charged before"):
        accountant.grant(ROUND, {"one": 2})
    assert accountant.grant(ROUND, {"one": 2}, resumed=True) == {"one": 2}
    assert accountant.spent()["one"].steps == 2
    assert accountant.grant(ROUND.again, {"one": 2}) == {"one": 2}
    assert accountant.spent()["one"].steps == 4
    assert accountant.charged(ROUND) == accountant.charged(ROUND.again) == {"one"}
    assert accountant.charged(ROUND.again.again) == accountant.charged(Attempt("run", 2)) == set()


def test_what_is_settled_is_the_attempt_that_is_named_and_the_first_if_none_is(ledger):
    accountant = enrolled(ledger)
    for attempt in (ROUND, ROUND.again):
        accountant.grant(attempt, {"one": 3, "two": 3})
    assert accountant.unreconciled("run") == {ROUND: {"one", "two"}, ROUND.again: {"one", "two"}}
    accountant.commit(ROUND, {"one": None})
    accountant.void(ROUND, ["two"])
    assert accountant.unreconciled("run") == {ROUND.again: {"one", "two"}}
    assert {client: spent.steps for client, spent in accountant.spent().items()} == {"one": 6, "two": 3}
    accountant.void(ROUND.again, ["one"])
    accountant.commit(ROUND.again, {"two": None})
    assert accountant.unreconciled("run") == {}
    assert {client: spent.steps for client, spent in accountant.spent().items()} == {"one": 3, "two": 3}
    assert accountant.histories(["one", "two"]) == {"one": {EVENT: 3}, "two": {EVENT: 3}}


def test_nothing_is_granted_or_shown_as_left_once_a_budget_has_expired(ledger):
    accountant = enrolled(ledger)
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    ledger.set_budget("a", BUDGET, long_ago, "the study is over")
    assert accountant.grant(ROUND, {"one": 2, "two": 2}) == {"two": 2}
    spent = accountant.spent()
    assert spent["one"].exhausted and spent["one"].steps_left == 0
    assert spent["two"].steps_left == QUOTA - 2


def test_a_client_s_own_book_counts_where_it_holds_more_and_says_how_much_more(ledger):
    accountant = CentralAccountant(ledger, EVENT.relation, BUDGET, "fixed-mechanism")
    datasets, events = {"one": "a", "two": "b"}, {"one": EVENT, "two": EVENT}
    assert accountant.enrol(datasets, events, {"one": {("elsewhere", EVENT): 7}, "two": {}}) == {"one": 7}
    assert accountant.enrol(datasets, events, {"one": {("elsewhere", EVENT): 5}}) == {}
    assert accountant.spent()["one"].steps == 7
    assert accountant.spent()["one"].steps_left == QUOTA - 7
    untouched = accountant.spent()["two"]
    assert (untouched.epsilon, untouched.steps, untouched.rounds, untouched.steps_left) == (0.0, 0, 0, QUOTA)


def test_two_clients_with_different_events_are_shown_each_its_own_loss(ledger):
    accountant = CentralAccountant(ledger, EVENT.relation, PrivacyBudget(math.inf, 1e-5), "fixed-mechanism")
    accountant.enrol({"one": "a", "two": "b"}, {"one": EVENT, "two": OTHER})
    accountant.grant(ROUND, {"one": 4, "two": 9})
    spent = accountant.spent()
    assert spent["one"].epsilon == pytest.approx(pld.epsilon({EVENT: 4}, 1e-5), rel=1e-5)
    assert spent["two"].epsilon == pytest.approx(pld.epsilon({OTHER: 9}, 1e-5), rel=1e-5)
    assert not spent["one"].exhausted


def spending(ledger, run_id, spend=1.0, event=LITTLE, filter="adaptive"):
    """The accountant of a run that may take so much of each budget."""
    accountant = CentralAccountant(ledger, EVENT.relation, BUDGET, filter, keep_filter=True, run_id=run_id, spend=spend)
    accountant.enrol({"one": "a", "two": "b"}, {"one": event, "two": event})
    return accountant


def test_each_run_takes_its_spend_of_each_client_s_budget_and_the_next_another(ledger):
    first = spending(ledger, "first")
    taken = first.grant(Attempt("first", 1), {"one": 10**6})["one"]
    assert pld.epsilon({LITTLE: taken}, 1e-5) <= 1.0 < pld.epsilon({LITTLE: taken + 1}, 1e-5)
    assert first.grant(Attempt("first", 2), {"one": 1, "two": 1}) == {"two": 1}
    assert first.spent()["one"].exhausted and not first.spent()["two"].exhausted
    second = spending(ledger, "second", event=LESS)
    more = second.grant(Attempt("second", 1), {"one": 10**6})["one"]
    before = pld.epsilon({LITTLE: taken}, 1e-5)
    assert pld.epsilon({LITTLE: taken, LESS: more}, 1e-5) <= before + 1.0
    assert pld.epsilon({LITTLE: taken, LESS: more + 1}, 1e-5) > before + 1.0


def test_a_run_that_goes_on_has_its_spend_once(ledger):
    first = spending(ledger, "first")
    half = first.spent()["one"].steps_left // 2
    first.grant(Attempt("first", 1), {"one": half})
    left = first.spent()["one"].steps_left
    again = spending(ledger, "first")
    assert again.spent()["one"].steps_left == left > 0
    again.grant(Attempt("first", 2), {"one": 10**6})
    assert pld.epsilon(ledger.accounts(["a"])["a"].history, 1e-5) <= 1.0
    again.void(Attempt("first", 2), ["one"])  # what is returned counts neither for the budget nor for the spend
    assert again.spent()["one"].steps_left == left


def test_two_runs_at_once_cannot_pass_the_budget_together(ledger):
    runs = [spending(ledger, name, 2.0) for name in ("first", "second")]
    for round in range(1, 40):
        for name, accountant in zip(("first", "second"), runs, strict=True):
            accountant.grant(Attempt(name, round), {"one": 20})
    assert pld.epsilon(ledger.accounts(["a"])["a"].history, 1e-5) <= BUDGET.epsilon
    assert all(accountant.spent()["one"].exhausted for accountant in runs)


def test_a_dataset_keeps_the_filter_of_its_first_run_unless_the_run_names_another(ledger):
    spending(ledger, "first", filter="fixed-mechanism")
    spending(ledger, "second", filter="adaptive")
    assert {allowance.filter for allowance in ledger.allowances(["a", "b"]).values()} == {"fixed-mechanism"}
    named = CentralAccountant(ledger, EVENT.relation, BUDGET, "adaptive")
    with pytest.raises(LedgerError, match=r"filter fixed-mechanism, and this run asks for .* filter adaptive"):
        named.enrol({"one": "a"}, {"one": EVENT})
