"""An exported ledger is whole or it is refused; brought back, it is the same ledger, and goes on."""

import hashlib
import json
import re

import pytest

from fedprivacy._support.signing import server_public_key
from fedprivacy.ledger import Answer, ChargeState, Ledger, LedgerError
from fedprivacy.ledger.export import import_ledger, verify_export
from fedprivacy.ledger.journal import sign_head
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from tests.ledger.acts import (
    ALLOWANCE,
    ASKED,
    COUNT,
    EVENT,
    KEY,
    LATER,
    OTHER,
    QUESTION,
    STRANGER,
    answers_of,
    ask,
    at_most,
    dying_at,
    exported,
    fill_and_ask,
    journal_of,
    problem,
    query,
    unlimited,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of an export with an entry of every kind: 18 entries, a signed head, 6 answers; 27 lines."""
    return exported(fill_and_ask(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"))


@pytest.fixture
def whole(small, tmp_path):
    file = tmp_path / "whole.jsonl"
    file.write_bytes(small)
    return file


def test_an_export_does_not_depend_on_the_order_in_which_answers_came(url):
    """Databases compare names each in their own way."""
    ledger, names = Ledger(url), ["\u00e4", "B", "a", "_", "A", "b"]
    ledger.open_budgets(dict.fromkeys(names, ALLOWANCE))
    ledger.reserve(ASKED, QUESTION, dict.fromkeys(names, 1), unlimited)
    ledger.settle(ASKED, names, ChargeState.COMMITTED)
    ledger.keep_answers(ASKED, [Answer(name, 0, COUNT, 20.0, (1,)) for name in names])
    lines = [json.loads(line) for line in exported(ledger).splitlines()]
    assert [line["answer"]["dataset_id"] for line in lines if "answer" in line] == sorted(names)
    ledger.close()


NAMES = {1: r"^line 1 is not", 20: r"signed head|^line 20,", 27: r"last line|^line 27,|\(line 27\)"}
NAMES |= {line: rf"^entry {line - 1} |^line {line}, after entry {line - 2}," for line in range(2, 20)}
NAMES |= {line: rf"line {line}\b|the answer of|last line" for line in range(21, 27)}


@pytest.mark.parametrize("step", [331, pytest.param(1, marks=pytest.mark.soak)])
def test_one_flipped_bit_anywhere_is_found_and_named(small, step):
    line_of = [number for number, line in enumerate(small.splitlines(keepends=True), start=1) for _ in line]
    for bit in range(0, 8 * len(small), step):
        flipped = bytearray(small)
        flipped[bit // 8] ^= 1 << bit % 8
        named = problem(flipped)
        assert re.search(NAMES[line_of[bit // 8]], named), (bit, named)


def test_a_line_that_was_removed_doubled_or_swapped_is_found_and_named(small):
    lines = small.splitlines(keepends=True)
    for entry in range(1, 18):  # line entry + 1
        following = f"entry {entry} is missing: entry {entry + 1} follows"
        assert following in problem(b"".join(lines[:entry] + lines[entry + 1 :]))
        assert f"entry {entry + 1} is missing" in problem(b"".join(lines[: entry + 1] + lines[entry:]))
        swapped = [*lines[:entry], lines[entry + 1], lines[entry], *lines[entry + 2 :]]
        assert f"entry {entry} is missing" in problem(b"".join(swapped))
    assert problem(b"".join(lines[:-1])) == "the end is missing: there is no last line after 18 entries"
    head = lines[19]
    assert "last line does not fit the 18 entries" in problem(b"".join(lines[:19] + lines[20:]))
    assert "last line does not fit the 18 entries" in problem(b"".join(lines[:20] + lines[19:]))
    assert "a signed head covers it" in problem(b"".join([lines[0], head, *lines[1:19], *lines[20:]]))
    for more in (b"\n", b"{}", small, lines[-1]):
        assert problem(small + more) == "something follows the last line, line 27"


def resealed(lines):
    """An export whose last line was made anew to fit, as somebody does who changed what is before it."""
    body = b"".join(lines)
    last = {"entries": 18, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(last, separators=(",", ":")).encode() + b"\n"


def test_an_export_with_other_answers_is_refused_even_where_its_last_line_fits(small):
    *lines, _ = small.splitlines(keepends=True)
    spring = lines[20].replace(b'"dataset_id":"a"', b'"dataset_id":"b"')
    other = {
        "changed": [*lines[:20], lines[20].replace(b"[97", b"[96"), *lines[21:]],
        "gone": [*lines[:20], *lines[21:]],
        "twice": [*lines, lines[20]],
        "of another": [*lines[:20], spring, *lines[21:]],
        "none at all": [lines[0].replace(b"2", b"1"), *lines[1:20]],
    }
    named = r"the answer of [ab], questions-spring, 1, 1, 0 is (not what the journal says|missing)"
    for name, changed in other.items():
        assert re.search(named, problem(resealed(changed))), name
    assert lines[20] != other["changed"][20]
    older = resealed([lines[0].replace(b"2", b"1"), *lines[1:]])
    assert "line 1 is not the first line of what follows" in problem(older)


FORMS = {
    "a fraction": (b'"number":0', b'"number":0.0'),
    "one field more": (b'{"answer":{', b'{"answer":{"Z":1,'),
    "a truth among totals": (b"[9700,", b"[true,"),
    "65 bits": (b"[9700,", b"[18446744073709551616,"),
    "a space": (b"[9700,", b"[ 9700,"),
}


@pytest.mark.parametrize(("old", "new"), FORMS.values(), ids=FORMS)
def test_an_answer_that_is_not_as_it_was_written_is_damage(small, old, new):
    *lines, _ = small.splitlines(keepends=True)
    assert old in lines[20]
    changed = lines[20].replace(old, new, 1)
    named = problem(resealed([*lines[:20], changed, *lines[21:]]))
    assert re.search(r"^line 21, after entry 18, is|\(line 21\) is", named)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b"null\n", b"\xff" * 9, b"SQLite format 3\x00", b"[" * 100_000 + b"\n"]
)
def test_a_file_that_is_no_export_is_refused(small, content):
    assert problem(content)
    assert problem(small.splitlines(keepends=True)[0] + content)


def test_an_export_that_was_written_anew_has_a_foreign_signer_and_contradicts_a_witness(tmp_path, whole):
    ledger = Ledger(f"sqlite:///{tmp_path / 'anew.db'}")
    ledger.bind_keys({f"hospital-{number}": str(number) for number in range(12)})
    sign_head(ledger.database, STRANGER)
    anew = tmp_path / "anew.jsonl"
    anew.write_bytes(exported(ledger))
    ledger.close()
    verify_export(anew)
    assert verify_export(whole, signers=[server_public_key(KEY)]).signed == 12
    with pytest.raises(BrokenJournalError, match="which is none of those named"):
        verify_export(anew, signers=[server_public_key(KEY)])
    with pytest.raises(BrokenJournalError, match="entry 12 or one before it was rewritten"):
        verify_export(anew, witnesses=verify_export(whole).heads)


def test_a_ledger_that_was_brought_back_goes_on(url, whole):
    other = Ledger(url)
    import_ledger(whole, other)
    other.resume_run("two")
    assert other.reserve(Attempt("two", 1, 3), EVENT, {"a": 9, "b": 9}, unlimited, resumed=True) == {"a": 1, "b": 2}
    assert other.reserve(Attempt("two", 2), EVENT, {"a": 9, "b": 9}, at_most(16)) == {"a": 1, "b": 9}
    other.settle(Attempt("one", 1), ["b"], ChargeState.COMMITTED)
    assert other.reconcile("a", {("one", EVENT): 10}) == 1
    assert other.accounts(["a", "b"])["a"].history == {EVENT: 12, OTHER: 3, QUESTION: 2}
    assert other.accounts(["a", "b"])["b"].history == {EVENT: 16, QUESTION: 1}
    other.keep_answers(LATER, answers_of("a", shift=7))
    with pytest.raises(LedgerError, match="has answered question 0"):
        other.keep_answers(LATER, answers_of("a"))
    ask(other, LATER.again, "b")
    assert verify_ledger(other).head.number == 24
    other.close()


def test_a_damaged_export_brings_in_nothing(url, small, tmp_path):
    ledger, file = Ledger(url), tmp_path / "damaged.jsonl"
    *lines, _ = small.splitlines(keepends=True)
    damaged = {
        "entry 4 was changed": small.replace(b"[0,5]", b"[0,1]"),
        "is missing; the journal holds its digest alone": resealed([*lines[:20], *lines[21:]]),
    }
    for named, content in damaged.items():
        file.write_bytes(content)
        with pytest.raises(BrokenJournalError, match=named):
            import_ledger(file, ledger)
        assert journal_of(ledger) == ledger.dataset_ids() == query(ledger, "SELECT * FROM answers") == []
    ledger.close()


def test_an_import_that_breaks_off_leaves_nothing_and_can_be_done_again(transactional_url, whole):
    ledger = Ledger(transactional_url)
    with dying_at("INSERT INTO charges"), pytest.raises(KeyboardInterrupt):
        import_ledger(whole, ledger)
    assert journal_of(ledger) == ledger.dataset_ids() == []
    import_ledger(whole, ledger)
    assert verify_ledger(ledger).head.number == 18
    ledger.close()
