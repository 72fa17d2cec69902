"""A ledger as a file: its journal and its signed heads, one JSON line each, between a first and a last line.

The text of an entry stands in its line as it stands in the journal, so that the chain of hashes is the same. A line
that is not exactly what this module writes is damage; the last line holds a hash of all lines before it. An export is
brought back into an empty database to move to PostgreSQL, or to make damaged tables anew.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from sqlalchemy import Connection, Table, insert

from fedprivacy.ledger import journal, schema
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.journal import Entry, SignedHead, canonical
from fedprivacy.ledger.replay import BrokenJournalError, Replay, WrittenAllowance
from fedprivacy.ledger.store import Ledger
from fedprivacy.ledger.verify import Verified, verify_parts

T = TypeVar("T")

_FIRST = canonical({"format": "fedprivacy-ledger", "version": 1}) + "\n"

_AT_ONCE = 10_000
"""Rows that are held in memory."""


def write_export(connection: Connection, out: IO[str]) -> int:
    """Write a ledger's journal and signed heads.

    Returns:
        How many entries.
    """
    digest, count = hashlib.sha256(), 0
    parts: Iterator[Entry | SignedHead] = chain(journal.read_entries(connection), journal.read_heads(connection))
    for line in chain([_FIRST], map(_line, parts)):
        out.write(line)
        digest.update(line.encode())
        count += line.startswith('{"entry":')
    out.write(_last(count, digest.hexdigest()))
    return count


def _line(part: Entry | SignedHead) -> str:
    if isinstance(part, Entry):
        return f'{{"entry":{part.text},"hash":"{part.hash}","number":{part.number}}}\n'
    return canonical({"checkpoint": part._asdict()}) + "\n"


def _last(entries: int, digest: str) -> str:
    return canonical({"entries": entries, "sha256": digest}) + "\n"


def read_export(lines: Iterable[bytes]) -> Iterator[Entry | SignedHead]:
    """Read an export back, strictly.

    Raises:
        BrokenJournalError: names the first line or entry that is not as it was written, or that the end is missing.
    """
    digest, count, rest = hashlib.sha256(), 0, iter(lines)
    for number, raw in enumerate(rest, start=1):
        if number == 1:
            if raw != _FIRST.encode():
                raise BrokenJournalError("line 1 is not the first line of an exported ledger of version 1")
        elif (part := _parsed(raw, number, count)) is None:
            if raw != _last(count, digest.hexdigest()).encode():
                raise BrokenJournalError(f"the last line does not fit the {count} entries before it")
            if next(rest, None) is not None:
                raise BrokenJournalError(f"something follows the last line, line {number}")
            return
        else:
            count += isinstance(part, Entry)
            yield part
        digest.update(raw)
    raise BrokenJournalError(f"the end is missing: there is no last line after {count} entries")


def _parsed(raw: bytes, line: int, entries: int) -> Entry | SignedHead | None:
    """What a line holds; None: it is the last."""
    where = f"line {line}, after entry {entries},"
    part: Entry | SignedHead
    try:
        text = raw.decode("ascii")
        fields: dict[str, Any] = json.loads(text)
        if "sha256" in fields:
            return None
        if "checkpoint" in fields:
            part = journal.parsed_head(fields["checkpoint"])
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
    """Refuse a file that is something else than an exported ledger, damaged or whole; a pipe can only be read once.

    Raises:
        LedgerError: it does not begin as an exported ledger does.
        OSError: it cannot be read.
    """
    if file.is_fifo():
        return
    with file.open("rb") as lines:
        if lines.readline(len(_FIRST)) != _FIRST.encode():
            raise LedgerError(f"'{file}' is no exported ledger; name a file that 'fedprivacy ledger export' wrote.")


def verify_export(file: Path, *, signers: Collection[str] = (), witnesses: Iterable[SignedHead] = ()) -> Verified:
    """Verify an exported ledger; see `fedprivacy.ledger.verify.verify_ledger`.

    Raises:
        BrokenJournalError: names the first entry, signed head or line that is not as it was written.
        OSError: the file cannot be read.
    """
    with file.open("rb") as lines:
        return verify_parts(read_export(lines), signers, witnesses)


def import_ledger(file: Path, ledger: Ledger) -> Verified:
    """Write an export into an empty ledger, entry by entry as it was, once it is verified.

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

    ledger.database.write(work)
    return verified


def _write_tables(connection: Connection, replay: Replay) -> None:
    """What the journal adds up to."""
    _insert(connection, schema.runs, ({"run_id": r, **run._asdict()} for r, run in replay.runs.items()))
    _insert(connection, schema.keys, ({"client_id": client, "key_hash": key} for client, key in replay.keys.items()))
    _insert(connection, schema.budgets, ({"dataset_id": d, **_row(budget)} for d, budget in replay.budgets.items()))
    _insert(connection, schema.charges, ({**key._asdict(), **made._asdict()} for key, made in replay.charges.items()))
    sums = replay.balances().items()
    _insert(connection, schema.balances, ({**key._asdict(), "steps": steps, "charges": n} for key, (steps, n) in sums))


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
