"""Witnesses: the newest signed head of its ledger that a run leaves in its folder, away from the ledger itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, select

from fedprivacy.ledger import Ledger, LedgerError, default_url, ledger_url
from fedprivacy.ledger.database import without_password
from fedprivacy.ledger.journal import SignedHead, holds
from fedprivacy.ledger.replay import BrokenJournalError
from fedprivacy.ledger.schema import runs
from fedprivacy.ledger.verify import read_witness
from fedprivacy.runs.settings.configuration import CONFIG, LEDGER
from fedprivacy.values.wording import count_text

WITNESS = "ledger-checkpoint.json"
"""The file in a run's folder with the newest signed head of the ledger: a witness, because it is kept elsewhere."""


class _Witness(NamedTuple):
    """A signed head in a run's folder, the name of the run, and the URL of the ledger that its settings name.

    A head that cannot be read is the error that says so, for a run of the ledger in question.
    """

    file: Path
    head: SignedHead | LedgerError
    run_id: str
    url: str


def check_witnesses(ledger: Ledger | None, url: str, *places: Path) -> None:
    """Refuse a ledger that does not hold what runs have signed of it.

    A witness is of this ledger if the settings of its run name the ledger, or one that runs of this ledger charged: it
    moved, or was restored under another name.

    Args:
        ledger: the ledger; None: there is none at its URL.
        url: URL of the ledger.
        places: folders with folders of runs in them.

    Raises:
        LedgerError: the ledger is gone, was rewritten, or an older copy was put back; or it cannot be read, or a
            witness of it cannot. The error names the witness and what helps.
    """
    witnesses = list(_witnesses(places))  # before the ledger: what a run signs meanwhile is in the ledger first
    if not witnesses:
        return
    if ledger is None:
        lacking = _lacking(None, url, witnesses)
    else:
        lacking = ledger.database.read(lambda connection: _lacking(connection, url, witnesses))
    if not lacking:
        return
    file, head = max(lacking, key=lambda each: each[1].number)
    more = f", nor what {count_text(len(lacking) - 1, 'other run')} signed" if len(lacking) > 1 else ""
    raise LedgerError(
        f"ledger {without_password(url)} does not hold entry {head.number} as it was signed on {head.at} (in {file})"
        f"{more}: an older copy was put back, or it was rewritten. Nothing is granted on it. Put back the ledger that "
        "holds that entry; 'fedprivacy ledger verify --witness' proves it. If it is lost for good: "
        "docs/how-to/incidents.md."
    )


def _lacking(connection: Connection | None, url: str, witnesses: list[_Witness]) -> list[tuple[Path, SignedHead]]:
    """Return the files and heads of the witnesses of a ledger that it contradicts."""
    known = set(connection.scalars(select(runs.c.run_id))) if connection else set()
    urls = {ledger_url(url), *(each.url for each in witnesses if each.run_id in known)}
    lacking = []
    for each in witnesses:
        if each.url not in urls:
            continue
        if isinstance(each.head, LedgerError):
            raise each.head
        if not (connection and holds(connection, each.head)):
            lacking.append((each.file, each.head))
    return lacking


def _witnesses(places: tuple[Path, ...]) -> Iterator[_Witness]:
    for file in sorted({file.resolve() for place in places for file in place.glob(f"*/{WITNESS}")}):
        try:
            config = json.loads((file.parent / CONFIG).read_text())
            named, run_id = str(config["settings"]["ledger"] or ""), str(config["run_id"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # no run's folder, or one of another version
        beside = file.parent / LEDGER
        try:
            url = ledger_url(named or str(beside)) if named or beside.exists() else default_url()
        except LedgerError:
            continue  # what its settings name is no ledger now, and so not this one
        try:
            head: SignedHead | LedgerError = read_witness(file)
        except (OSError, BrokenJournalError) as problem:
            head = LedgerError(f"{problem}; put back that file, or rename it if it is lost for good.")
        yield _Witness(file, head, run_id, url)
