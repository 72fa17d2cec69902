"""Verification that a ledger, or an export of one, is as written: nothing changed, left out, added or reordered.

Six things are checked. The chain: every entry has its number and its hash. The journal: every entry is allowed at its
place. The receipts: each is signed with its client's key, so that nobody else could have issued it, and agrees with its
charge. The signed heads: each has a valid signature, and agrees with the chain. The tables: they hold exactly the sums
of the journal, as do the balances by which grants are decided. The answers: those stored are exactly those whose
digests the journal holds.
"""

from __future__ import annotations

import datetime
import gc
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Enum, LargeBinary, String, Table, select, type_coerce
from sqlalchemy.types import NULLTYPE, TypeEngine

from fedprivacy._support.signing import RECEIPT, signed_by_client
from fedprivacy._support.software import Software
from fedprivacy.ledger.charges import in_utc
from fedprivacy.ledger.journal import Entry, Head, SignedHead, entry_hash, parsed_head, read_entries, read_heads
from fedprivacy.ledger.kept_answers import digest
from fedprivacy.ledger.replay import (
    AnswerKey,
    BrokenJournalError,
    Charge,
    ChargeKey,
    Evidence,
    Mechanism,
    QuestionKey,
    Replay,
    WrittenAllowance,
)
from fedprivacy.ledger.schema import answers, balances, budgets, charges, keys, questions, runs
from fedprivacy.ledger.store import Ledger
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import ROW


@dataclass(frozen=True, slots=True)
class Verified:
    """A verified ledger: its newest entry, the state after all entries, its signed heads in order."""

    head: Head
    replay: Replay = field(repr=False)
    heads: tuple[SignedHead, ...]

    @property
    def signed(self) -> int:
        """Number of entries that the newest signed head covers."""
        return max((head.number for head in self.heads), default=0)


def verify_ledger(ledger: Ledger, *, signers: Collection[str] = (), witnesses: Iterable[SignedHead] = ()) -> Verified:
    """Verify a ledger in its database.

    Args:
        ledger: the ledger.
        signers: public keys, in hexadecimal, of accepted signers of heads; one of them must have signed. Empty: any.
        witnesses: signed heads that were kept elsewhere.

    Raises:
        BrokenJournalError: an entry, signed head or row was changed; the error names the first.
    """
    with ledger.database.reading() as connection:
        parts: Iterator[Entry | SignedHead] = chain(read_entries(connection), read_heads(connection))
        verified = verify_parts(parts, signers, witnesses)
        _compare_tables(connection, verified.replay)
    return verified


def read_witness(file: Path) -> SignedHead:
    """Read a signed head from a file of its own, as JSON.

    Raises:
        BrokenJournalError: the file holds no signed head.
        OSError: the file cannot be read.
    """
    try:
        return parsed_head(json.loads(file.read_text()))
    except (ValueError, TypeError, RecursionError) as problem:
        raise BrokenJournalError(f"'{file}' holds no signed head") from problem


def verify_parts(
    parts: Iterable[Entry | SignedHead], signers: Collection[str], witnesses: Iterable[SignedHead]
) -> Verified:
    """Verify the journal: every entry in order, and then the signed heads; see `verify_ledger`."""
    replay, head = Replay(), Head()
    hashes: dict[int, str] = {}
    found: list[SignedHead] = []
    with _no_garbage_collection():
        for part in parts:
            if isinstance(part, SignedHead):
                _check_head(part, hashes, signers)
                found.append(part)
            else:
                head = _follow(head, part)
                hashes[head.number] = head.hash
                entry = _read(part)
                replay.enter(part.number, entry)
                if entry["kind"] == "settlement":
                    _check_receipts(part.number, entry, replay)
    if signers and not {made.public_key for made in found} & set(signers):  # otherwise all could have been rewritten
        raise BrokenJournalError(f"no signed head bears the signature of {', '.join(signers)}")
    for witness in witnesses:
        _check_head(witness, hashes, signers)
    return Verified(head, replay, tuple(sorted(found)))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection: a replay only adds, and the collector would scan millions of charges in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _follow(head: Head, entry: Entry) -> Head:
    if entry.number != head.number + 1:
        raise BrokenJournalError(f"entry {head.number + 1} is missing: entry {entry.number} follows {head.number}")
    if entry_hash(head.hash, entry.text) != entry.hash:
        raise BrokenJournalError(f"entry {entry.number} was changed: its hash is not that of its text")
    return Head(entry.number, entry.hash)


def _read(entry: Entry) -> dict[str, Any]:
    try:
        fields = json.loads(entry.text)
    except (ValueError, RecursionError) as problem:
        raise BrokenJournalError(f"entry {entry.number} is no JSON") from problem
    if not isinstance(fields, dict):
        raise BrokenJournalError(f"entry {entry.number} is no JSON object")
    return fields


def _check_receipts(number: int, settlement: dict[str, Any], replay: Replay) -> None:
    """Check the receipts of a settlement that was just entered."""
    for dataset_id, evidence in settlement["receipts"].items():
        if evidence:
            key = ChargeKey(dataset_id, *Attempt.named_in(settlement))
            try:
                _check_receipt(Evidence(*evidence), key, replay)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
                raise BrokenJournalError(f"entry {number}: the receipt for {dataset_id} {problem}") from problem


def _check_receipt(evidence: Evidence, key: ChargeKey, replay: Replay) -> None:
    said, charge, public_key = json.loads(evidence.receipt), replay.charges[key], evidence.public_key.encode()
    if replay.keys.get(said["client_id"]) != key_hash(public_key):
        raise ValueError("comes with another key than its client has")
    if not signed_by_client(public_key, RECEIPT, evidence.receipt.encode(), evidence.signature):
        raise ValueError("is not signed by its client")
    if "software" in said:  # a client need not say
        _ = Software.of(said["software"])
    if key[1:] != Attempt.named_in(said):
        raise ValueError("is for another round")
    if any(said[name] != getattr(charge, name) for name in ("steps", *ROW)):
        raise ValueError("is for something else than what was charged")
    if (run := replay.runs.get(key.run_id)) and said["unit"] != run.unit:
        raise ValueError(f"is for another unit of privacy than its run, {run.unit}")


def _check_head(head: SignedHead, hashes: Mapping[int, str], signers: Collection[str]) -> None:
    which = f"the signed head of entry {head.number}"
    if not head.genuine:
        raise BrokenJournalError(f"{which} does not bear the signature of key {head.public_key}")
    if signers and head.public_key not in signers:
        raise BrokenJournalError(f"{which} was signed by key {head.public_key}, which is none of those named")
    if head.number not in hashes:
        raise BrokenJournalError(f"entry {head.number} is missing, and a signed head covers it: the end was cut off")
    if hashes[head.number] != head.hash:
        raise BrokenJournalError(f"entry {head.number} or one before it was rewritten: a signed head says another hash")


def _compare_tables(connection: Connection, replay: Replay) -> None:
    _compare("run", _rows(connection, runs, 1), replay.runs)
    _compare("key", ((client, key) for client, (key,) in _rows(connection, keys, 1)), replay.keys)
    _compare(
        "budget",
        ((dataset, _written_allowance(*row)) for dataset, row in _rows(connection, budgets, 1)),
        replay.budgets,
    )
    names = (*ChargeKey._fields, *Charge._fields)
    _compare("charge", _rows(connection, charges, len(ChargeKey._fields), names), replay.charges)
    held = ((key, value) for key, value in _rows(connection, balances, len(Mechanism._fields)) if any(value))
    _compare("balance", held, replay.balances())
    _compare("question", _rows(connection, questions, len(QuestionKey._fields)), replay.questions)
    kept = _rows(connection, answers, len(AnswerKey._fields), (*AnswerKey._fields, *_OF_ANSWER))
    _compare("answer", ((key, (*rest, digest(totals))) for key, (*rest, totals) in kept), replay.answers, _PUT_BACK)


_OF_ANSWER = ("entry", "noise_multiplier", "totals")


def compare_digests(found: Iterable[tuple[AnswerKey, str]], replay: Replay) -> None:
    """Compare answers stored elsewhere, by their digests, with the journal.

    Raises:
        BrokenJournalError: an answer is missing, changed, or not in the journal.
    """
    _compare("answer", found, {key: answer.digest for key, answer in replay.answers.items()}, _PUT_BACK)


def _rows(
    connection: Connection, table: Table, key_length: int, names: Collection[str] = ()
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the rows of a table as (key, rest); a key of one column is that column. Texts stay texts: enums equal them.

    Bytes are returned as stored: somebody may have replaced them by a text.
    """
    columns = [table.c[name] for name in names or table.c.keys()]
    plain = [type_coerce(column, _AS_IT_LIES.get(type(column.type), column.type)) for column in columns]
    for row in connection.execution_options(yield_per=1000).execute(select(*plain)):
        yield row[0] if key_length == 1 else tuple(row[:key_length]), tuple(row[key_length:])


_AS_IT_LIES: Mapping[type[Any], TypeEngine[Any]] = {Enum: String(), LargeBinary: NULLTYPE}


def _written_allowance(
    epsilon: float | None, delta: float, filter: str, expires: datetime.datetime | None, deliberate: bool
) -> WrittenAllowance:
    instant = in_utc(expires)
    return WrittenAllowance(epsilon, delta, filter, instant.isoformat() if instant else None, deliberate)


_REBUILD = "'fedprivacy ledger export' and 'import' make the tables anew from the journal"
_PUT_BACK = "the journal holds its digest alone, so put back a copy that verifies"


def _compare(noun: str, rows: Iterable[tuple[Any, Any]], expected: Mapping[Any, Any], remedy: str = _REBUILD) -> None:
    remaining = dict(expected)
    for key, value in rows:
        if remaining.pop(key, None) != value:
            raise BrokenJournalError(f"the {noun} of {_words(key)} is not what the journal says; {remedy}")
    for key in remaining:
        raise BrokenJournalError(f"the {noun} of {_words(key)} is missing; {remedy}")


def _words(key: Any) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
