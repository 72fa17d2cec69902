"""Nobody rewrites the past unseen: whatever is changed behind the ledger's back is found, and named."""

import json

import pytest
from sqlalchemy import text

from fedprivacy._support.signing import RECEIPT, server_public_key, sign
from fedprivacy.ledger import ChargeState, Ledger, LedgerError
from fedprivacy.ledger.journal import canonical, entry_hash, parsed_head, read_heads, sign_head
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.verify import read_witness, verify_ledger
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.unit import Unit
from tests.ledger.acts import (
    ALLOWANCE,
    CLIENT_PEM,
    EVENT,
    KEY,
    STRANGER,
    copied,
    fill,
    found_when,
    journal_of,
    receipt,
    rewrite,
    tamper,
    undamaged_by,
    unlimited,
)


def found(url, match, **options):
    """Check that a ledger no longer verifies, for that reason."""
    ledger = Ledger(url)
    with pytest.raises(BrokenJournalError, match=match):
        verify_ledger(ledger, **options)
    ledger.close()


undamaged = undamaged_by(fill)


JOURNAL = {
    "a text": ("UPDATE journal SET entry = replace(entry, '[0,5]', '[0,1]') WHERE number = 4", "entry 4 was changed"),
    "a space": ("UPDATE journal SET entry = replace(entry, '{', '{ ') WHERE number = 1", "entry 1 was changed"),
    "a hash": ("UPDATE journal SET hash = '" + "0" * 64 + "' WHERE number = 6", "entry 6 was changed"),
    "a number": ("UPDATE journal SET number = 99 WHERE number = 12", "entry 12 is missing: entry 99 follows 11"),
    "the first row": ("DELETE FROM journal WHERE number = 1", "entry 1 is missing: entry 2 follows 0"),
    "a row": ("DELETE FROM journal WHERE number = 5", "entry 5 is missing: entry 6 follows 4"),
    "the end": ("DELETE FROM journal WHERE number > 10", "entry 12 is missing, and a signed head covers it"),
    "a row at the end": ("INSERT INTO journal SELECT 13, entry, hash FROM journal WHERE number = 12", "entry 13 was"),
    "a row before the first": ("INSERT INTO journal SELECT 0, entry, hash FROM journal WHERE number = 1", "entry 0"),
    "a row in the middle": (
        (
            "UPDATE journal SET number = -number WHERE number > 5",
            "UPDATE journal SET number = 1 - number WHERE number < 0",
            "INSERT INTO journal SELECT 6, entry, hash FROM journal WHERE number = 5",
        ),
        "entry 6 was changed",
    ),
}
COMMITTED = "dataset_id = 'a' AND run_id = 'one' AND round = 1"
TABLES = {
    "steps": (f"UPDATE charges SET steps = 1 WHERE {COMMITTED}", "charge of a, one, 1, 1"),
    "a state": (f"UPDATE charges SET state = 'void' WHERE {COMMITTED}", "charge of a, one, 1, 1"),
    "a void state": ("UPDATE charges SET state = 'committed' WHERE state = 'void'", "charge of b, one, 1, 1"),
    "a dataset": ("UPDATE charges SET dataset_id = 'b' WHERE round = 2", "charge of b, one, 2, 1"),
    "an entry's number": (f"UPDATE charges SET entry = 5 WHERE {COMMITTED}", "charge of a, one, 1, 1"),
    "a run": (f"UPDATE charges SET run_id = 'two' WHERE {COMMITTED}", "charge of a, two, 1, 1"),
    "a round": ("UPDATE charges SET round = 9 WHERE round = 2", "charge of a, one, 9, 1"),
    "a noise": (f"UPDATE charges SET noise_multiplier = 9 WHERE {COMMITTED}", "charge of a, one, 1, 1"),
    "a charge": (f"DELETE FROM charges WHERE {COMMITTED}", "charge of a, one, 1, 1 is missing"),
    "a budget's epsilon": ("UPDATE budgets SET epsilon = 30 WHERE dataset_id = 'a'", "budget of a"),
    "an expiry": ("UPDATE budgets SET expires = NULL WHERE dataset_id = 'b'", "budget of b"),
    "a deliberate act": ("UPDATE budgets SET deliberate = (1 = 1) WHERE dataset_id = 'a'", "budget of a"),
    "a budget": ("DELETE FROM budgets WHERE dataset_id = 'b'", "budget of b is missing"),
    "one budget more": (
        "INSERT INTO budgets SELECT 'c', epsilon, delta, filter, expires, deliberate FROM budgets LIMIT 1",
        "budget of c",
    ),
    "a key": ("UPDATE keys SET key_hash = 'cc'", "key of hospital-0"),
    "no key": ("DELETE FROM keys", "key of hospital-0 is missing"),
    "one key more": ("INSERT INTO keys VALUES ('mallory', 'cc')", "key of mallory"),
    "a run's dataset": ("UPDATE runs SET dataset = 'cancer' WHERE run_id = 'two'", "run of two"),
    "a run's unit": ("UPDATE runs SET unit = 'patient' WHERE run_id = 'two'", "run of two"),
    "no run": ("DELETE FROM runs WHERE run_id = 'two'", "run of two is missing"),
    "one run more": ("INSERT INTO runs VALUES ('three', 12, 'digits', '2 parts', 'record')", "run of three"),
    "a balance": ("UPDATE balances SET steps = steps - 1 WHERE dataset_id = 'a'", "balance of a, 0.[12], [12].0"),
    "a hidden balance": ("UPDATE balances SET charges = 0 WHERE dataset_id = 'b'", "balance of b, 0.1, 1.0"),
    "a balance's owner": ("UPDATE balances SET dataset_id = 'c' WHERE dataset_id = 'b'", "balance of c, 0.1, 1.0"),
    "no balance": (
        "DELETE FROM balances WHERE dataset_id = 'b'",
        "balance of b, 0.1, 1.0, add-or-remove-one is missing",
    ),
    "a credit for later": (
        "INSERT INTO balances VALUES ('b', 0.2, 2.0, 'zero-out', -100, 0)",
        "balance of b, 0.2, 2.0, zero-out",
    ),
    "a charge that stands twice where another is gone": (
        (
            "CREATE TABLE bare_answers AS SELECT * FROM answers",  # they refer to charges
            "DROP TABLE answers",
            "ALTER TABLE bare_answers RENAME TO answers",
            "CREATE TABLE without_rules AS SELECT * FROM charges",
            "DROP TABLE charges",
            "ALTER TABLE without_rules RENAME TO charges",
            "INSERT INTO charges SELECT * FROM charges WHERE run_id = 'two' AND dataset_id = 'b'",
            f"DELETE FROM charges WHERE {COMMITTED}",
        ),
        "charge of b, two, 1, 3 is not",
    ),
}


@pytest.mark.parametrize(("damage", "match"), [*JOURNAL.values(), *TABLES.values()], ids=[*JOURNAL, *TABLES])
def test_damage_is_found_and_named(undamaged, damage, match):
    found_when(undamaged, *([damage] if isinstance(damage, str) else damage), match=match)


HEADS = {
    "signature": ("UPDATE checkpoints SET signature = '{0}'", "signed head of entry 12 does not bear the signature of"),
    "signature for another purpose": (
        "UPDATE checkpoints SET signature = '{2}'",
        "signed head of entry 12 does not bear",
    ),
    "time": ("UPDATE checkpoints SET at = '2020-01-01T00:00:00+00:00'", "signed head of entry 12 does not bear"),
    "hash": ("UPDATE checkpoints SET hash = '{0}'", "signed head of entry 12 does not bear"),
    "number": ("UPDATE checkpoints SET number = 11", "signed head of entry 11 does not bear"),
    "key": (
        "UPDATE checkpoints SET public_key = '{1}'",
        "signed head of entry 12 does not bear the signature of key {1}",
    ),
    "no key": ("UPDATE checkpoints SET public_key = 'a key'", "does not bear the signature of key a key"),
}


@pytest.mark.parametrize(("damage", "match"), HEADS.values(), ids=HEADS)
def test_a_signed_head_that_was_changed_is_named(undamaged, damage, match):
    stranger = server_public_key(STRANGER)
    with undamaged.database.reading() as connection:
        head = read_heads(connection)[-1]
    receipt = sign(KEY, RECEIPT, f"{head.number} {head.hash} {head.at}".encode())
    found_when(undamaged, damage.format("00" * 32, stranger, receipt), match=match.format("", stranger))


LESS = (
    "UPDATE charges SET steps = 1 WHERE dataset_id = 'a' AND round = 2",
    "UPDATE balances SET steps = steps - 2 WHERE dataset_id = 'a' AND noise_multiplier = 2",
)


@pytest.fixture
def rewritten(url, filled):
    """A ledger that was written anew, every hash and every sum, to hold less."""
    rewrite(url, 7, "[0,3]", "[0,1]")
    tamper(url, *LESS)


OF_ANOTHER = {
    **dict.fromkeys(("round", "run", "attempt"), "another round"),
    **dict.fromkeys(("fewer steps", "rate", "noise", "relation"), "something else than what was charged"),
}
SAYS = {
    "round": {"round": 1},
    "run": {"run_id": "two"},
    "attempt": {"attempt": 2},
    "fewer steps": {"steps": 4},
    "rate": {"sampling_rate": 0.05},
    "noise": {"noise_multiplier": 2.0},
    "relation": {"relation": "zero-out"},
}


@pytest.mark.parametrize("other", OF_ANOTHER)
def test_a_receipt_of_another_charge_proves_none(url, other):
    """The client signed it, for a round, an attempt or a mechanism of its own; every hash is that of its text."""
    ledger = Ledger(url)
    ledger.open_run("one", "digits", "2 parts")
    ledger.bind_keys({"hospital-0": key_hash(CLIENT_PEM)})
    ledger.open_budgets({"a": ALLOWANCE})
    for number in (1, 2):
        ledger.reserve(Attempt("one", number), EVENT, {"a": 5}, unlimited)
        ledger.settle(Attempt("one", number), {"a": receipt("one", number, 5)}, ChargeState.COMMITTED)
    assert verify_ledger(ledger).head.number == 7
    ledger.close()
    said = {"run_id": "one", "round": 2, "steps": 5} | SAYS[other]
    rewrite(url, 7, canonical(receipt("one", 2, 5)), canonical(receipt(**said)))
    found(url, f"entry 7: the receipt for a is for {OF_ANOTHER[other]}")


def test_a_run_whose_unit_was_written_anew_contradicts_its_receipts(url):
    ledger = Ledger(url)
    ledger.open_run("one", "digits", "2 parts", Unit("patient", 8))
    ledger.bind_keys({"hospital-0": key_hash(CLIENT_PEM)})
    ledger.open_budgets({"a": ALLOWANCE})
    ledger.reserve(Attempt("one", 1), EVENT, {"a": 5}, unlimited)
    ledger.settle(
        Attempt("one", 1), {"a": receipt("one", 1, 5, unit="patient (at most 8 rows)")}, ChargeState.COMMITTED
    )
    assert verify_ledger(ledger).replay.runs["one"].unit == "patient (at most 8 rows)"
    ledger.close()
    rewrite(url, 1, "at most 8 rows", "at most 2 rows")
    found(url, r"entry 5: the receipt for a is for another unit of privacy than its run, patient \(at most 2 rows\)")


def test_a_run_without_its_unit_is_no_entry_of_a_journal(url, filled):
    tamper(url, "DELETE FROM checkpoints")
    rewrite(url, 1, ',"unit":"record"', "")
    assert "unit" not in journal_of(filled)[0][1] and "unit" in journal_of(filled)[10][1]
    found(url, "entry 1")


def test_a_ledger_that_was_written_anew_contradicts_its_signed_head(url, rewritten):
    found(url, "entry 12 or one before it was rewritten: a signed head says another hash")


@pytest.mark.parametrize("anew", [False, True])
def test_a_ledger_without_a_signed_head_does_not_pass_for_one_that_a_named_key_signed(url, request, anew):
    """Neither the true one nor one that was written anew: without its heads both are consistent."""
    request.getfixturevalue("rewritten" if anew else "filled")
    tamper(url, "DELETE FROM checkpoints")
    found(url, f"no signed head bears the signature of {server_public_key(KEY)}", signers=[server_public_key(KEY)])
    ledger = Ledger(url)
    sign_head(ledger.database, KEY)
    assert verify_ledger(ledger, signers=[server_public_key(KEY), server_public_key(STRANGER)]).signed == 12
    ledger.close()


@pytest.mark.parametrize("entry", ["", "[1]", "7", "null", '"kind"', "{", "[" * 100_000])
def test_an_entry_that_is_no_entry_is_named_though_its_hash_fits(undamaged, entry):
    *_, (_, _, before), _ = journal_of(undamaged)
    changed = f"UPDATE journal SET entry = '{entry}', hash = '{entry_hash(before, entry)}' WHERE number = 12"
    found_when(undamaged, changed, match="entry 12 is no JSON")


@pytest.mark.parametrize("known", ["its own last head", "a head that it is given", "both"])
def test_nobody_signs_a_ledger_that_contradicts_what_was_signed_before(url, known):
    """Whoever wrote it anew would have the newest entries vouch for it."""
    ledger = Ledger(url)
    ledger.open_run("one", "digits", "2 parts")
    signed = sign_head(ledger.database, KEY)
    ledger.open_run("two", "digits", "2 parts")
    assert sign_head(ledger.database, KEY, signed).number == 2
    ledger.close()
    rewrite(url, 1, "2 parts", "3 parts")
    if known == "a head that it is given":
        tamper(url, "DELETE FROM checkpoints")
    ledger = Ledger(url)
    with pytest.raises(LedgerError, match=r"does not hold entry \d as it was signed"):
        sign_head(ledger.database, KEY, None if known == "its own last head" else signed)
    ledger.close()


def test_a_witness_of_another_form_is_refused(tmp_path):
    fields = {"number": 1, "hash": "ab", "at": "2026", "public_key": "cd", "signature": "ef"}
    assert parsed_head(fields)
    wrong = [fields | {"more": 1}, fields | {"at": 5.0}]
    wrong += [
        fields | {field: value} for field in fields.keys() - {"at"} for value in (None, 5.0, "x", True, [], "ABCD")
    ]
    wrong += [{name: fields[name] for name in fields if name != field} for field in fields]
    for content in (*map(json.dumps, wrong), "", "[]", "{", "5", "[" * 100_000):
        (file := tmp_path / "witness.json").write_text(content)
        with pytest.raises(BrokenJournalError, match=r"witness\.json' holds no signed head"):
            read_witness(file)


def test_a_ledger_verifies_while_it_is_written(transactional_url):
    """Verification sees one state, though entries and charges arrive between the first row and the last."""
    filled, other = copied(fill, transactional_url), Ledger(transactional_url)
    with filled.database.reading() as connection:
        connection.execute(text("SELECT COUNT(*) FROM journal")).scalar()
        other.reserve(Attempt("two", 2), EVENT, {"a": 5}, unlimited)
        entries = connection.execute(text("SELECT COUNT(*) FROM journal")).scalar()
        charges = connection.execute(text("SELECT COUNT(*) FROM charges WHERE round = 2 AND run_id = 'two'")).scalar()
    assert (entries, charges) == (12, 0)
    assert verify_ledger(filled).head.number == 13
    other.close()
