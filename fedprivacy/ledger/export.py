"""A ledger as a file: its journal and its signed heads, one JSON line each, between a first and a last line.

The text of an entry stands in its line as it stands in the journal, so that the chain of hashes is the same. A line
that is not exactly what this module writes is damage; the last line holds a hash of all lines before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from sqlalchemy import Connection, select

from fedprivacy.ledger.heads import SignedHead, parsed_head, read_heads
from fedprivacy.ledger.journal import canonical
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.schema import journal

_FIRST = canonical({"format": "fedprivacy-ledger", "version": 1})


class Entry(NamedTuple):
    """An entry of the journal as it is kept.

    Attributes:
        number: counted from 1.
        text: canonical JSON.
        hash: in hexadecimal.
    """

    number: int
    text: str
    hash: str


def read_entries(connection: Connection) -> Iterator[Entry]:
    """Every entry of a ledger's journal, in order."""
    rows = select(journal.c.number, journal.c.entry, journal.c.hash).order_by(journal.c.number)
    for row in connection.execution_options(yield_per=1000).execute(rows):
        yield Entry(*row)


def write_export(connection: Connection, out: IO[str]) -> int:
    """Write a ledger's journal and signed heads.

    Returns:
        How many entries.
    """
    digest, count = hashlib.sha256(), 0
    for line in _lines(connection):
        out.write(line + "\n")
        digest.update(f"{line}\n".encode())
        count += line.startswith('{"entry":')
    out.write(canonical({"entries": count, "sha256": digest.hexdigest()}) + "\n")
    return count


def _lines(connection: Connection) -> Iterator[str]:
    yield _FIRST
    for entry in read_entries(connection):
        yield _entry_line(entry)
    for head in read_heads(connection):
        yield _head_line(head)


def _entry_line(entry: Entry) -> str:
    return f'{{"entry":{entry.text},"hash":"{entry.hash}","number":{entry.number}}}'


def _head_line(head: SignedHead) -> str:
    return canonical({"checkpoint": head._asdict()})


def read_export(lines: Iterable[bytes]) -> Iterator[Entry | SignedHead]:
    """Read an export back, strictly.

    Raises:
        BrokenJournalError: names the first line or entry that is not as it was written, or that the end is missing.
    """
    digest, count, rest = hashlib.sha256(), 0, iter(lines)
    for number, raw in enumerate(rest, start=1):
        if number == 1:
            if raw != f"{_FIRST}\n".encode():
                raise BrokenJournalError("line 1 is not the first line of an exported ledger of version 1")
        elif (part := _parsed(raw, number, count)) is None:
            _check_end(raw, count, digest.hexdigest())
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
            head = parsed_head(fields["checkpoint"])
            part, written = head, _head_line(head)
        else:
            kept = canonical(fields["entry"])
            where = f"entry {entries + 1} (line {line})"
            entry = Entry(fields["number"], kept, fields["hash"])
            part, written = entry, _entry_line(entry)
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise BrokenJournalError(f"{where} is damaged: {type(problem).__name__}") from problem
    if text != written + "\n":
        raise BrokenJournalError(f"{where} is not as it was written")
    return part


def _check_end(raw: bytes, entries: int, digest: str) -> None:
    if raw != (canonical({"entries": entries, "sha256": digest}) + "\n").encode():
        raise BrokenJournalError(f"the last line does not fit the {entries} entries before it")
