"""The ledger counts what was charged, over runs, and refuses what it could not add up."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

import fedprivacy as fp
from fedprivacy.ledger import Account, ChargeState, Ledger, LedgerError
from fedprivacy.ledger.errors import AccountError
from fedprivacy.ledger.journal import Head
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.runs.accountant import CentralAccountant
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import UNNAMED, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import Unit
from tests.ledger.acts import ALLOWANCE, EVENT, copied, fill_and_ask, journal_of, unlimited

OTHER = PoissonSampledGaussian(0.1, 2.0)


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


# --- a second reading reads only the accounts that the journal has named since the first, and misses none ---

DATASETS = ("a", "b", "c", "d")
ROUND = Attempt("run", 1)


@pytest.fixture
def watched(url):
    opened = Ledger(url)
    opened.open_budgets(dict.fromkeys(DATASETS, ALLOWANCE))
    opened.reserve(ROUND, EVENT, {"a": 2, "b": 2}, unlimited)
    return opened


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
        (lambda ledger: ledger.open_budgets({"new": ALLOWANCE}), set()),
    ],
)
def test_what_another_program_writes_is_read_again_and_nothing_else(act, named, watched, url):
    known = set(DATASETS)
    first = watched.read_changed(known, Head(), set())
    assert set(first.dataset_ids) == known and set(first.accounts) == {"a", "b"}
    another = Ledger(url)
    act(another)
    again = watched.read_changed(known, first.head, set())
    assert set(again.dataset_ids) == named
    assert again.accounts == {d: account for d, account in another.accounts(DATASETS).items() if d in named}
    assert again.allowances == another.allowances(named)
    assert {**first.accounts, **again.accounts}.keys() >= another.accounts(DATASETS).keys()
    unchanged = known - named
    assert {d: first.accounts.get(d) for d in unchanged} == {d: another.accounts([d]).get(d) for d in unchanged}
    assert watched.read_changed(known, again.head, set()).dataset_ids == ()


@pytest.mark.parametrize("since", [Head(2, "f" * 64), Head(99, "f" * 64)], ids=["rewritten", "an older copy"])
def test_of_a_journal_that_does_not_hold_what_was_read_before_everything_is_read(since, watched):
    assert set(watched.read_changed(set(DATASETS), since, set()).dataset_ids) == set(DATASETS)


def test_it_is_known_of_every_kind_of_entry_whose_account_it_changes(url):
    ledger = copied(fill_and_ask, url)
    _, _, hash = journal_of(ledger)[0]
    assert set(ledger.read_changed({"a", "b", "c"}, Head(1, hash), set()).dataset_ids) == {"a", "b"}
