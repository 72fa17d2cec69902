"""Export of a ledger as a file: its journal, its signed heads and the answers to questions, one JSON line each.

A line holds an entry's text exactly as in the journal, so that the chain of hashes is the same. A line that is not
exactly as this module writes it is damage; the last line holds a hash of all lines before it. An export is imported
into an empty database to move to PostgreSQL, or to rebuild damaged tables.

The first line names the format's version: 2 if there are answers, else 1, which older programs can read.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Table, insert, select

from fedprivacy.ledger import journal, schema
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.journal import Entry, SignedHead, canonical
from fedprivacy.ledger.kept_answers import digest, pack_totals, unpack_totals
from fedprivacy.ledger.replay import AnswerKey, BrokenJournalError, Replay, WrittenAllowance
from fedprivacy.ledger.store import Ledger
from fedprivacy.ledger.verify import Verified, compare_digests, verify_parts

T = TypeVar("T")

_FIRST = {
    answered: canonical({"format": "fedprivacy-ledger", "version": version}) + "\n"
    for answered, version in ((False, 1), (True, 2))
}

_AT_ONCE = 10_000
"""Maximum number of rows held in memory."""


class KeptTotals(NamedTuple):
    """The key of an answer, and its totals as `fedprivacy.ledger.kept_answers.pack_totals` stores them."""

    key: AnswerKey
    stored: bytes


Part = Entry | SignedHead | KeptTotals


def write_export(connection: Connection, out: IO[str]) -> int:
    """Write a ledger's journal, signed heads and answers.

    Returns:
        Number of entries.
    """
    hashed, count = hashlib.sha256(), 0
    answered = connection.execute(select(schema.answers.c.number).limit(1)).first() is not None
    parts: Iterator[Part] = chain(
        journal.read_entries(connection), journal.read_heads(connection), _read_totals(connection)
    )
    for line in chain([_FIRST[answered]], map(_line, parts)):
        out.write(line)
        hashed.update(line.encode())
        count += line.startswith('{"entry":')
    out.write(_last(count, hashed.hexdigest()))
    return count


def _read_totals(connection: Connection) -> Iterator[KeptTotals]:
    """Read every answer, in an order that does not depend on a database's collation."""
    table = schema.answers.c
    wanted = select(*(table[name] for name in AnswerKey._fields), table.entry, table.totals)
    rows = connection.execution_options(yield_per=1000).execute(wanted.order_by(table.entry, table.number))
    for _, together in groupby(rows, lambda row: (row.entry, row.number)):
        yield from sorted(KeptTotals(AnswerKey(*key), stored) for *key, _, stored in together)


def _line(part: Part) -> str:
    if isinstance(part, Entry):
        return f'{{"entry":{part.text},"hash":"{part.hash}","number":{part.number}}}\n'
    if isinstance(part, SignedHead):
        return canonical({"checkpoint": part._asdict()}) + "\n"
    return canonical({"answer": {**part.key._asdict(), "totals": unpack_totals(part.stored)}}) + "\n"


def _last(entries: int, digest: str) -> str:
    return canonical({"entries": entries, "sha256": digest}) + "\n"


def read_export(lines: Iterable[bytes]) -> Iterator[Part]:
    """Read an export back, strictly.

    Raises:
        BrokenJournalError: a line or entry was changed, or the end is missing; the error names the first problem.
    """
    hashed, count, rest = hashlib.sha256(), 0, iter(lines)
    first, answered = b"", False
    for number, raw in enumerate(rest, start=1):
        if number == 1:
            first = raw
            if not _begins_export(first):
                raise BrokenJournalError("line 1 is not the first line of an exported ledger of version 1 or 2")
        elif (part := _parse_line(raw, number, count)) is None:
            if raw != _last(count, hashed.hexdigest()).encode():
                raise BrokenJournalError(f"the last line does not fit the {count} entries before it")
            if next(rest, None) is not None:
                raise BrokenJournalError(f"something follows the last line, line {number}")
            if first != _FIRST[answered].encode():
                raise BrokenJournalError("line 1 is not the first line of what follows, but of another version")
            return
        else:
            count += isinstance(part, Entry)
            answered |= isinstance(part, KeptTotals)
            yield part
        hashed.update(raw)
    raise BrokenJournalError(f"the end is missing: there is no last line after {count} entries")


def _begins_export(line: bytes) -> bool:
    return line in [first.encode() for first in _FIRST.values()]


def _parse_line(raw: bytes, line: int, entries: int) -> Part | None:
    """Parse a line; None: it is the last."""
    where = f"line {line}, after entry {entries},"
    part: Part
    try:
        text = raw.decode("ascii")
        fields: dict[str, Any] = json.loads(text)
        if "sha256" in fields:
            return None
        if "checkpoint" in fields:
            part = journal.parsed_head(fields["checkpoint"])
        elif "answer" in fields:
            answer = fields["answer"]
            key = AnswerKey(*(answer[name] for name in AnswerKey._fields))
            if [type(value) for value in key] != [str, str, int, int, int]:  # each answer has only one text
                raise ValueError("a field of the answer has another type")
            part = KeptTotals(key, pack_totals(answer["totals"]))
        else:
            kept = canonical(fields["entry"])
            where = f"entry {entries + 1} (line {line})"
            part = Entry(fields["number"], kept, fields["hash"])
        written = _line(part)
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise BrokenJournalError(f"{where} is damaged: {type(problem).__name__}") from problem
    if text != written:
        raise BrokenJournalError(f"{where} is not as it was written")
    return part


def check_export(file: Path) -> None:
    """Refuse a file that is no exported ledger, damaged or whole; a pipe is not checked, as it can be read only once.

    Raises:
        LedgerError: it does not begin like an exported ledger.
        OSError: it cannot be read.
    """
    if file.is_fifo():
        return
    with file.open("rb") as lines:
        first = lines.readline(len(_FIRST[True]))
    if first.startswith(b"SQLite"):
        raise LedgerError(f"'{file}' is a ledger itself, not an exported one; write --ledger before it, or export it.")
    if not _begins_export(first):
        raise LedgerError(f"'{file}' is no exported ledger; name a file that 'fedprivacy ledger export' wrote.")


def verify_export(file: Path, *, signers: Collection[str] = (), witnesses: Iterable[SignedHead] = ()) -> Verified:
    """Verify an exported ledger; see `fedprivacy.ledger.verify.verify_ledger`.

    Raises:
        BrokenJournalError: an entry, signed head or line was changed; the error names the first.
        OSError: the file cannot be read.
    """
    digests: list[tuple[AnswerKey, str]] = []
    with file.open("rb") as lines:
        verified = verify_parts(_without_totals(read_export(lines), digests), signers, witnesses)
    compare_digests(digests, verified.replay)
    return verified


def _without_totals(parts: Iterable[Part], digests: list[tuple[AnswerKey, str]]) -> Iterator[Entry | SignedHead]:
    """Yield all parts except the answers, whose digests are collected."""
    for part in parts:
        if isinstance(part, KeptTotals):
            digests.append((part.key, digest(part.stored)))
        else:
            yield part


def import_ledger(file: Path, ledger: Ledger) -> Verified:
    """Verify an export and write it into an empty ledger, entry by entry.

    Raises:
        BrokenJournalError: the export is damaged. Nothing is written.
        LedgerError: the ledger has entries already.
        OSError: the file cannot be read.
    """
    verified = verify_export(file)

    def work(connection: Connection, again: bool) -> None:
        held = journal.head(connection)
        if again and held == verified.head:
            return
        if held.number:
            raise LedgerError(f"ledger {ledger.name} has entries already; import into a new one.")
        with file.open("rb") as lines:
            for some in _batches(read_export(lines)):
                entries = ({"number": e.number, "entry": e.text, "hash": e.hash} for e in some if isinstance(e, Entry))
                _insert(connection, schema.journal, entries)
                _insert(connection, schema.heads, (part._asdict() for part in some if isinstance(part, SignedHead)))
        _write_tables(connection, verified.replay)
        with file.open("rb") as lines:
            _insert(connection, schema.answers, _answer_rows(read_export(lines), verified.replay))

    ledger.database.write(work)
    return verified


def _write_tables(connection: Connection, replay: Replay) -> None:
    """Write the tables that the journal adds up to."""
    _insert(connection, schema.runs, ({"run_id": r, **run._asdict()} for r, run in replay.runs.items()))
    _insert(connection, schema.keys, ({"client_id": client, "key_hash": key} for client, key in replay.keys.items()))
    _insert(connection, schema.budgets, ({"dataset_id": d, **_row(budget)} for d, budget in replay.budgets.items()))
    _insert(connection, schema.charges, ({**key._asdict(), **made._asdict()} for key, made in replay.charges.items()))
    sums = replay.balances().items()
    _insert(connection, schema.balances, ({**key._asdict(), "steps": steps, "charges": n} for key, (steps, n) in sums))
    _insert(connection, schema.questions, ({**key._asdict(), **put._asdict()} for key, put in replay.questions.items()))


def _answer_rows(parts: Iterable[Part], replay: Replay) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, KeptTotals):
            written = replay.answers[part.key]
            facts = {"entry": written.entry, "noise_multiplier": written.noise_multiplier}
            yield {**part.key._asdict(), **facts, "totals": part.stored}


def _row(allowance: WrittenAllowance) -> dict[str, Any]:
    expires = allowance.expires and datetime.datetime.fromisoformat(allowance.expires)
    return allowance._asdict() | {"expires": expires}


def _insert(connection: Connection, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    for some in _batches(rows):
        connection.execute(insert(table), some)


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(rows)
    while some := list(islice(remaining, _AT_ONCE)):
        yield some
