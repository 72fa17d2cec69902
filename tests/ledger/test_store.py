"""The ledger counts what was charged, over runs, and refuses what it could not add up."""

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

import fedprivacy as fp
from fedprivacy.ledger import NOTHING_SPENT, Account, ChargeState, Ledger, LedgerError
from fedprivacy.ledger.errors import AccountError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import UNNAMED, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import Unit
from tests.ledger.acts import ALLOWANCE, CLIENT_PEM, EVENT, journal_of, receipt, unlimited

OTHER = PoissonSampledGaussian(0.1, 2.0)


def test_reserved_and_committed_charges_count_and_void_ones_do_not(ledger):
    for round in (1, 2, 3):
        ledger.reserve(Attempt("run", round), EVENT, {"a": 5}, unlimited)
    ledger.settle(Attempt("run", 1), ["a"], ChargeState.COMMITTED)
    ledger.settle(Attempt("run", 2), ["a"], ChargeState.VOID)
    ledger.reserve(Attempt("run", 4), OTHER, {"b": 5}, unlimited)
    ledger.settle(Attempt("run", 4), ["b"], ChargeState.VOID)
    accounts = ledger.accounts(["a", "b"])
    assert accounts["a"].history == {EVENT: 10}
    assert accounts["a"].rounds == 2
    assert "b" not in accounts  # bound to no mechanism


def test_runs_and_mechanisms_add_up_on_one_ledger(url, ledger):
    ledger.reserve(Attempt("one", 1), EVENT, {"a": 5, "b": 1}, unlimited)
    again = Ledger(url)
    again.reserve(Attempt("two", 1), EVENT, {"a": 2}, unlimited)
    again.reserve(Attempt("two", 2), OTHER, {"a": 3}, unlimited)
    assert again.accounts(["a", "b"])["a"].history == {EVENT: 7, OTHER: 3}
    assert again.accounts(["a", "b"])["b"].history == {EVENT: 1}


def test_a_grant_is_the_smaller_of_wanted_and_allowed(ledger):
    granted = ledger.reserve(
        Attempt("run", 1), EVENT, {"a": 5, "b": 5}, lambda dataset_id, *_: 3 if dataset_id == "a" else 0
    )
    assert granted == {"a": 3}
    assert ledger.accounts(["a", "b"])["a"].history == {EVENT: 3}
    assert "b" not in ledger.accounts(["a", "b"])


def test_another_split_of_the_same_records_is_refused(url, ledger):
    ledger.open_run("one", "digits", "10 parts")
    ledger.open_run("two", "digits", "10 parts")
    ledger.open_run("three", "cancer", "5 parts")
    with pytest.raises(LedgerError, match=r"split as '10 parts'.*Name the split in .*partition\(\), .*another ledger"):
        ledger.open_run("four", "digits", "20 parts")


PATIENT = Unit("patient", 8)


@pytest.mark.parametrize(
    ("before", "after"),
    [(Unit(), PATIENT), (PATIENT, Unit()), (PATIENT, Unit("patient", 4))],
    ids=["to persons", "to rows", "to fewer rows"],
)
def test_another_unit_of_the_same_records_is_refused(ledger, before, after):
    ledger.open_run("one", "digits", "10 parts", before)
    ledger.open_run("two", "digits", "10 parts", before)
    ledger.open_run("three", "cancer", "10 parts", after)
    both = re.escape(f"with the unit of privacy '{before}', and this run's is '{after}'")
    with pytest.raises(LedgerError, match=f"holds runs on digits {both}.*use another ledger, or another dataset name"):
        ledger.open_run("four", "digits", "10 parts", after)
    ledger.resume_run("two", before)
    with pytest.raises(LedgerError, match=f"holds run two {both}"):
        ledger.resume_run("two", after)
    assert ledger.open_run("five", "digits", "10 parts", before) == 2


@pytest.mark.parametrize(
    "bad",
    [
        "mysql://host/db",
        "postgresql+psycopg://host",
        "not a url",
        "sqlite:////proc/nowhere/ledger.db",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_a_ledger_that_cannot_be_opened_names_setting_value_and_remedy(bad):
    with pytest.raises(LedgerError, match="ledger is"):
        Ledger(bad)


@pytest.mark.exhaustive
def test_a_database_of_bytes_is_refused_by_its_encoding_and_one_of_other_letters_is_used(postgres):
    ascii_url = postgres.new_database(encoding="SQL_ASCII")
    for create in (True, False):
        with pytest.raises(
            LedgerError, match=r"has encoding SQL_ASCII.*'createdb --encoding=UTF8 --template=template0"
        ):
            Ledger(ascii_url, create=create)
    for encoding in ("UTF8", "LATIN1"):
        ledger = Ledger(postgres.new_database(encoding=encoding))
        ledger.bind_keys({"hôpital-0": "aa"})
        ledger.open_budgets({"blobs/hôpital-0": ALLOWANCE})
        assert ledger.dataset_ids() == ["blobs/hôpital-0"]
        verify_ledger(ledger)
        ledger.close()
    with pytest.raises(ConfigError, match="has encoding SQL_ASCII"):  # before anything else is looked at
        fp.simulate("cancer", clients=2, rounds=1, ledger=ascii_url, progress=False)


def test_a_client_is_bound_to_one_key_and_no_key_to_two_clients_until_it_is_renewed(url, ledger):
    ledger.bind_keys({"hospital-0": "aa"})
    with pytest.raises(LedgerError, match="hospital-0 comes with another key"):
        Ledger(url).bind_keys({"hospital-0": "bb", "hospital-1": "cc"})
    with pytest.raises(LedgerError, match="comes with a key of hospital-0"):
        ledger.bind_keys({"hospital-9": "aa"})
    with pytest.raises(LedgerError, match="comes with a key of one"):
        ledger.bind_keys({"one": "dd", "two": "dd"})
    ledger.rebind_key("hospital-0", "bb")
    Ledger(url).bind_keys({"hospital-0": "bb"})
    with pytest.raises(LedgerError, match="knows no client 'nobody'"):
        ledger.rebind_key("nobody", "cc")


def test_a_key_that_was_replaced_opens_no_account_and_is_nobody_s_again(url, ledger):
    """Who stole it could otherwise go on as the hospital, or train on its records from zero under another name."""
    ledger.bind_keys({"hospital-0": "aa", "hospital-1": "cc"})
    ledger.rebind_key("hospital-0", "bb")
    for name, problem in (("hospital-0", "comes with another key"), ("hospital-9", "comes with a key of hospital-0")):
        with pytest.raises(AccountError, match=problem):
            Ledger(url).bind_keys({name: "aa"})
    for name, problem in (("hospital-0", "replaced that key before"), ("hospital-1", "is or was hospital-0's")):
        with pytest.raises(LedgerError, match=problem):
            Ledger(url).rebind_key(name, "aa")
    Ledger(url).rebind_key("hospital-0", "bb")
    Ledger(url).bind_keys({"hospital-0": "bb", "hospital-1": "cc", "hospital-2": "dd"})
    verify_ledger(ledger)


def test_a_key_that_is_replaced_during_a_run_leaves_a_ledger_that_verifies(ledger):
    """The receipt on its way counts, and proves nothing: the journal keeps none of a key that was withdrawn."""
    ledger.open_run("one", "digits", "2 parts")
    ledger.bind_keys({"hospital-0": key_hash(CLIENT_PEM)})
    ledger.open_budgets({"a": ALLOWANCE})
    for round in (1, 2):
        ledger.reserve(Attempt("one", round), EVENT, {"a": 5}, unlimited)
    ledger.settle(Attempt("one", 1), {"a": receipt("one", 1, 5)}, ChargeState.COMMITTED)
    ledger.rebind_key("hospital-0", "bb")
    ledger.settle(Attempt("one", 2), {"a": receipt("one", 2, 5)}, ChargeState.COMMITTED)
    assert ledger.accounts(["a"])["a"].history == {EVENT: 10}
    verify_ledger(ledger)
    written = [json.loads(text) for _, text, _ in journal_of(ledger)]
    settled = [entry["receipts"]["a"] for entry in written if entry["kind"] == "settlement"]
    assert settled[0] and settled[1] is None


VOID, COMMITTED, RESERVED = ChargeState.VOID, ChargeState.COMMITTED, ChargeState.RESERVED
AFTER = {
    (RESERVED, VOID): VOID,
    (RESERVED, COMMITTED): COMMITTED,
    (VOID, VOID): VOID,
    (VOID, COMMITTED): COMMITTED,  # its receipt came after all
    (COMMITTED, VOID): COMMITTED,  # what was released was released
    (COMMITTED, COMMITTED): COMMITTED,
}


@pytest.mark.parametrize(("before", "told"), AFTER)
def test_a_charge_counts_unless_it_was_given_back_for_good(ledger, before, told):
    """Every reader of the ledger sees the same: accounts, attempts, units, what is open, what a client may claim."""
    attempt, count = Attempt("run", 3, 2), AFTER[before, told] is not VOID
    ledger.open_run("run", "digits", "ten", PATIENT)
    ledger.reserve(Attempt("run", 2, 7), EVENT, {"b": 1}, unlimited)
    ledger.reserve(Attempt("other", 3, 9), EVENT, {"b": 1, "c": 2}, unlimited)
    ledger.reserve(attempt, EVENT, {"a": 5}, unlimited)
    for state in (before, told):
        if state is not RESERVED:
            ledger.settle(attempt, ["a"], state)
    assert verify_ledger(ledger).replay.charges["a", *attempt].state is AFTER[before, told]
    assert (
        ledger.accounts(["a"])
        == ledger.accounts_in_run("run", ["a"])
        == ({"a": Account({EVENT: 5}, 1)} if count else {})
    )
    assert ledger.accounts_in_run("other", ["a", "b"]) == {"b": Account({EVENT: 1}, 1)}
    assert ledger.charged(attempt) == ({"a"} if count else set())
    assert ledger.units(["a"]) == ({"a": str(PATIENT)} if count else {})
    assert ledger.reserved("run") == {Attempt("run", 2, 7): {"b"}}
    assert (ledger.last_attempt("run", 3), ledger.last_attempt("run", 1)) == (attempt, None)
    assert ledger.reserve(attempt, EVENT, {"a": 5}, unlimited, resumed=True) == ({"a": 5} if count else {})
    assert ledger.reconcile("a", {("run", EVENT): 6, ("older", EVENT): 3}) == (4 if count else 9)
    assert ledger.accounts(["a"])["a"].history == {EVENT: 9}
    moments = [datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (-1, 1)]
    assert list(map(ledger.steps_raised, moments)) == [{"a": 4 if count else 9}, {}]


def test_what_another_run_charges_meanwhile_stops_the_client_that_it_concerns_and_no_other(url):
    accountant = CentralAccountant(Ledger(url), EVENT.relation, ALLOWANCE.budget, ALLOWANCE.filter)
    accountant.enrol({"one": "a", "two": "b"}, {"one": EVENT, "two": EVENT})
    Ledger(url).reconcile("a", {("elsewhere", OTHER): 3})
    assert accountant.grant(Attempt("run", 1), {"one": 2, "two": 2}) == {"two": 2}
    spent = accountant.spent()
    assert spent["one"].exhausted and not spent["two"].exhausted
    assert spent["one"].steps == 3 and spent["one"].epsilon > 0.0


def test_claims_of_another_relation_or_beyond_any_account_are_refused_whole(ledger):
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 5}, unlimited)
    other = PoissonSampledGaussian(0.1, 1.0, NeighbouringRelation.ZERO_OUT)
    most = {("x", EVENT): 1, (UNNAMED, EVENT): 2**31 - 1}
    for claims in ({("x", other): 3}, {(UNNAMED, other): 9}, {("x", EVENT): 2**30, ("y", EVENT): 2**30}, most):
        with pytest.raises(AccountError, match="claims steps that do not go with"):
            ledger.reconcile("a", claims)
    assert ledger.accounts(["a"])["a"].history == {EVENT: 5}


def test_claims_that_grow_are_charged_by_what_they_grew_each_in_its_own_run(ledger):
    """A client comes back again and again with more: nothing is counted twice, and nothing is lost."""
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 5, "b": 5}, unlimited)
    run, another = ("run", EVENT), ("another", EVENT)
    assert ledger.reconcile("a", {run: 7}) == 2
    assert ledger.reconcile("a", {run: 7, another: 3}) == 3
    assert ledger.reconcile("a", {run: 8, another: 3}) == 1
    assert ledger.reconcile("a", {run: 2}) == 0
    assert ledger.accounts(["a"])["a"].history == {EVENT: 11}
    assert ledger.accounts(["b"])["b"].history == {EVENT: 5}
    verify_ledger(ledger)


def test_steps_of_no_named_run_are_charged_where_the_ledger_does_not_hold_them_already(ledger):
    """A guard was raised by 7 steps of a run that it forgot. The ledger knows the run, or forgot it, too."""
    ledger.reserve(Attempt("forgotten", 1), EVENT, {"a": 7}, unlimited)
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 1, "b": 1}, unlimited)
    claims = {("run", EVENT): 1, (UNNAMED, EVENT): 7}
    assert ledger.reconcile("a", claims) == 0
    assert [ledger.reconcile("b", claims) for _ in range(3)] == [7, 0, 0]
    assert ledger.accounts(["a", "b"])["a"].history == ledger.accounts(["a", "b"])["b"].history == {EVENT: 8}
    ledger.reserve(Attempt("run", 2), EVENT, {"b": 2}, unlimited)  # the guard charges it as well
    assert ledger.reconcile("b", {("run", EVENT): 3, (UNNAMED, EVENT): 7}) == 0
    assert ledger.reconcile("b", {("run", EVENT): 3, (UNNAMED, EVENT): 9}) == 2
    assert ledger.reconcile("b", {(UNNAMED, OTHER): 2}) == 2  # steps of one event stand for no other's
    assert ledger.accounts(["b"])["b"].history == {EVENT: 12, OTHER: 2}
    verify_ledger(ledger)


def test_after_any_claims_the_ledger_holds_each_run_and_each_event_and_grows_by_no_more(ledger):
    draw, names, events = random.Random(5), ["run", "spring", UNNAMED], [EVENT, OTHER]
    for round in range(1, 16):
        ledger.reserve(Attempt("run", round), draw.choice(events), {"a": draw.randint(1, 3)}, unlimited)
        before = Counter(ledger.accounts(["a"])["a"].history)
        in_run = {name: Counter(ledger.accounts_in_run(name, ["a"]).get("a", NOTHING_SPENT).history) for name in names}
        claims = {(draw.choice(names), draw.choice(events)): draw.randint(0, 3 * round) for _ in range(4)}
        named = {claim: steps for claim, steps in claims.items() if claim[0] != UNNAMED}
        added = ledger.reconcile("a", claims)
        held = Counter(ledger.accounts(["a"])["a"].history)
        for event in events:
            raised = before[event] + sum(max(0, n - in_run[run][e]) for (run, e), n in named.items() if e == event)
            assert held[event] == max(raised, sum(n for (_, e), n in claims.items() if e == event))
        assert sum(held.values()) - sum(before.values()) == added
        assert ledger.reconcile("a", claims) == 0
    verify_ledger(ledger)


# --- balances: the sums on which a grant is decided ---


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
    ledger.reserve(Attempt("run", 1), EVENT, {"a": 5, "b": 7}, unlimited)
    ledger.database.write(lambda connection, _: connection.execute(text(damage)))
    with pytest.raises(LedgerError, match=r"balances contradict its charges.*ledger verify"):
        ledger.open_run("another", "digits", "3 parts")
