"""An exported ledger is whole or it is refused; brought back, it is the same ledger, and goes on."""

import json
import re

import pytest
from sqlalchemy import text

from fedprivacy._support.signing import server_public_key
from fedprivacy.ledger import ChargeState, Ledger, LedgerError, export
from fedprivacy.ledger.export import import_ledger, verify_export
from fedprivacy.ledger.journal import sign_head
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.verify import verify_ledger
from fedprivacy.values.attempt import Attempt
from tests.ledger.acts import (
    EVENT,
    KEY,
    OTHER,
    STRANGER,
    at_most,
    exported,
    fill,
    journal_of,
    problem,
    query,
    unlimited,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of an export with an entry of every kind and a signed head: 15 lines."""
    return exported(fill(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"))


@pytest.fixture
def whole(small, tmp_path):
    file = tmp_path / "whole.jsonl"
    file.write_bytes(small)
    return file


def test_an_export_verifies(whole):
    verified = verify_export(whole, signers=[server_public_key(KEY)])
    assert (verified.head.number, verified.signed, len(verified.replay.charges)) == (12, 12, 6)


def test_an_export_is_one_line_for_each_entry_and_signed_head(small):
    lines = [json.loads(line) for line in small.splitlines()]
    assert [line.get("number") for line in lines[1:13]] == list(range(1, 13))
    assert lines[13]["checkpoint"]["number"] == 12
    assert lines[14]["entries"] == 12


NAMES = {1: r"^line 1 is not", 14: r"signed head|^line 14,", 15: r"last line|^line 15,|\(line 15\)"}
NAMES |= {line: rf"^entry {line - 1} |^line {line}, after entry {line - 2}," for line in range(2, 14)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("line", range(1, 16))
def test_one_flipped_bit_anywhere_is_found_and_named(small, line):
    lines = small.splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1]))
    for place in range(start, start + len(lines[line - 1])):
        for bit in range(8):
            flipped = bytearray(small)
            flipped[place] ^= 1 << bit
            named = problem(flipped)
            assert re.search(NAMES[line], named), (place, bit, named)


def test_an_export_that_was_cut_off_anywhere_is_found(small):
    for length in range(len(small)):
        assert re.search(r"the end is missing|^line|^entry|last line", problem(small[:length]))


def test_an_export_that_was_cut_off_between_lines_lacks_its_end(small):
    lines = small.splitlines(keepends=True)
    for count in range(len(lines)):
        cut = problem(b"".join(lines[:count]))
        assert cut == f"the end is missing: there is no last line after {min(max(count - 1, 0), 12)} entries"


def test_a_line_that_was_removed_doubled_or_swapped_is_found_and_named(small):
    lines = small.splitlines(keepends=True)
    for at in range(1, 12):
        entry = at  # line at + 1
        assert f"entry {entry} is missing: entry {entry + 1} follows" in problem(b"".join(lines[:at] + lines[at + 1 :]))
        assert f"entry {entry + 1} is missing" in problem(b"".join(lines[: at + 1] + lines[at:]))
        swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        assert f"entry {entry} is missing" in problem(b"".join(swapped))


def test_a_signed_head_that_was_removed_doubled_or_moved_is_found(small):
    lines = small.splitlines(keepends=True)
    assert "last line does not fit the 12 entries" in problem(b"".join(lines[:13] + lines[14:]))
    assert "last line does not fit the 12 entries" in problem(b"".join(lines[:14] + lines[13:]))
    assert "a signed head covers it" in problem(b"".join([lines[0], lines[13], *lines[1:13], lines[14]]))


def test_nothing_may_follow_the_last_line(small):
    for more in (b"\n", b"{}", small, small.splitlines(keepends=True)[-1]):
        assert problem(small + more) == "something follows the last line, line 15"


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
    with pytest.raises(BrokenJournalError, match="which is none of those named"):
        verify_export(anew, signers=[server_public_key(KEY)])
    with pytest.raises(BrokenJournalError, match="entry 12 or one before it was rewritten"):
        verify_export(anew, witnesses=verify_export(whole).heads)


@pytest.fixture(params=["sqlite", "postgresql"])
def other_url(request, tmp_path, postgres):
    """Another place for a ledger."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'other.db'}"
        return
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


def test_export_import_export_is_the_same_to_the_byte(filled, other_url, tmp_path):
    first, file = exported(filled), tmp_path / "export.jsonl"
    file.write_bytes(first)
    other = Ledger(other_url)
    assert import_ledger(file, other).head.number == 12
    assert exported(other) == first
    assert verify_ledger(other, witnesses=verify_export(file).heads).signed == 12
    other.close()


def test_a_ledger_that_was_brought_back_is_the_same(filled, other_url, tmp_path):
    file, other = tmp_path / "export.jsonl", Ledger(other_url)
    file.write_bytes(exported(filled))
    import_ledger(file, other)
    datasets = ["a", "b", "c"]
    assert other.accounts(datasets) == filled.accounts(datasets)
    assert other.allowances(datasets) == filled.allowances(datasets)
    for table in ("runs", "keys"):
        assert set(query(other, f"SELECT * FROM {table}")) == set(query(filled, f"SELECT * FROM {table}"))
    assert other.last_attempt("two", 1) == filled.last_attempt("two", 1) == Attempt("two", 1, 3)
    other.close()


def test_a_ledger_that_was_brought_back_goes_on(small, other_url, whole):
    other = Ledger(other_url)
    import_ledger(whole, other)
    other.resume_run("two")
    assert other.reserve(Attempt("two", 1, 3), EVENT, {"a": 9, "b": 9}, unlimited, resumed=True) == {"a": 1, "b": 2}
    assert other.reserve(Attempt("two", 2), EVENT, {"a": 9, "b": 9}, at_most(14)) == {"a": 1, "b": 9}
    other.settle(Attempt("one", 1), ["b"], ChargeState.COMMITTED)
    assert other.reconcile("a", {("one", EVENT): 10}) == 1
    assert other.accounts(["a", "b"])["a"].history == {EVENT: 12, OTHER: 3}
    assert other.accounts(["a", "b"])["b"].history == {EVENT: 16}
    assert verify_ledger(other).head.number == 15
    other.close()


def test_nothing_is_brought_into_a_ledger_that_has_entries(filled, whole):
    with pytest.raises(LedgerError, match=r"has entries already; import into a new one"):
        import_ledger(whole, filled)
    assert verify_ledger(filled).head.number == 12


def test_a_damaged_export_brings_in_nothing(url, small, tmp_path):
    ledger, file = Ledger(url), tmp_path / "damaged.jsonl"
    file.write_bytes(small.replace(b"[0,5]", b"[0,1]"))
    with pytest.raises(BrokenJournalError, match="entry 4 was changed"):
        import_ledger(file, ledger)
    assert journal_of(ledger) == ledger.dataset_ids() == []
    ledger.close()


def test_an_import_that_breaks_off_leaves_nothing_and_can_be_done_again(url, whole, monkeypatch):
    ledger = Ledger(url)

    def break_off(connection, _):
        assert connection.scalar(text("SELECT COUNT(*) FROM journal")) == 12
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(export, "_write_tables", break_off)
        with pytest.raises(KeyboardInterrupt):
            import_ledger(whole, ledger)
    assert journal_of(ledger) == ledger.dataset_ids() == []
    import_ledger(whole, ledger)
    assert verify_ledger(ledger).head.number == 12
    ledger.close()
