"""Tally: the entries of a guard's log, their sums, and the file that holds them beside the sealed updates.

The data owner's deliberate act begins another account for the same records (`renew`).

Times are for people. No decision uses them, because a host's clock may jump.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from fedprivacy._support.durable import name_durably
from fedprivacy.guard import seals
from fedprivacy.guard.errors import LogWriteError
from fedprivacy.guard.log import EntryLog
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import Event, NeighbouringRelation, as_fields, from_fields, is_unsampled_gaussian
from fedprivacy.values.unit import RECORD, Unit


@dataclass(frozen=True, slots=True)
class ChargeEntry:
    """Steps of an event that may be executed, because they are charged; `run_key` is the server key's fingerprint.

    `beyond` counts the steps before it, of all events, that this log held and the ledger behind the grant did not.
    """

    attempt: Attempt
    event: Event
    steps: int
    run_key: str
    allowance: Allowance
    time: str
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class CorrectionEntry:
    """Steps that the server's ledger counts and this log did not: from this entry on, they count here too.

    Both figures exclude the grant that reported them, which `attempt` names; the server's is the larger one.
    """

    attempt: Attempt
    event: Event
    client_steps: int
    server_steps: int
    allowance: Allowance
    time: str

    @property
    def steps(self) -> int:
        """Number of steps that count additionally from now on."""
        return self.server_steps - self.client_steps


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """An update, by its file's name and SHA-256, that may be sent repeatedly: its charge has paid for it."""

    attempt: Attempt
    name: str
    sha256: str
    time: str


@dataclass(frozen=True, slots=True)
class RelationEntry:
    """The relation and the unit that the account promises, recorded before a size leaves that only this relation allows
    to be public, and before anything is charged for another unit than a record.
    """

    relation: NeighbouringRelation
    time: str
    unit: Unit = RECORD


def counts_as_question(entry: ChargeEntry | CorrectionEntry) -> bool:
    """Return whether an entry must be counted as a question.

    A server's ledger reports its steps by event and not by run. So a correction counts if it may concern questions: if
    its event is a Gaussian without sampling, since a question is never charged another event.
    """
    return entry.attempt.asks if isinstance(entry, ChargeEntry) else is_unsampled_gaussian(entry.event)


Entry = ChargeEntry | CorrectionEntry | SealedEntry | RelationEntry
Write = Callable[[Entry], None]


def now() -> str:
    """Return the time for entries: UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def fingerprint(run_key: str) -> str:
    """Return the fingerprint of a server's key that a log stores: its SHA-256 in hexadecimal."""
    return sha256(run_key.encode(errors="surrogatepass")).hexdigest()


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry for the log."""
    fields: dict[str, Any] = {"time": entry.time}
    if not isinstance(entry, RelationEntry):
        fields |= entry.attempt._asdict()
    match entry:
        case ChargeEntry():
            fields |= {"kind": "charge", "steps": entry.steps, "run_key": entry.run_key}
            fields |= {"beyond": entry.beyond} if entry.beyond else {}
        case CorrectionEntry():
            fields |= {"kind": "correction", "client_steps": entry.client_steps, "server_steps": entry.server_steps}
        case SealedEntry():
            fields |= {"kind": "sealed", "name": entry.name, "sha256": entry.sha256}
        case RelationEntry():
            fields |= {"kind": "relation", "relation": entry.relation.value, "unit": str(entry.unit)}
    if isinstance(entry, ChargeEntry | CorrectionEntry):
        budget, filter = entry.allowance.budget, entry.allowance.filter
        epsilon = budget.epsilon if budget.enforced else None
        fields |= {"event": as_fields(entry.event), "epsilon": epsilon, "delta": budget.delta, "filter": filter}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode_entry(payload: bytes) -> Entry:
    """Return the entry that `encode_entry` wrote. Raises ValueError: the bytes are no entry."""
    try:
        return _entry(json.loads(payload))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no entry of a guard ({error!r})") from error


def _entry(fields: Mapping[str, Any]) -> Entry:
    kind, time = fields["kind"], fields["time"]
    if kind == "relation":
        return RelationEntry(NeighbouringRelation(fields["relation"]), time, Unit.of(fields["unit"]))
    attempt = Attempt.named_in(fields)
    if kind == "sealed":
        return SealedEntry(attempt, fields["name"], fields["sha256"], time)
    epsilon = math.inf if fields["epsilon"] is None else fields["epsilon"]
    allowance = Allowance(PrivacyBudget(epsilon, fields["delta"]), fields["filter"])
    event = from_fields(fields["event"])
    if kind == "charge":
        beyond = fields.get("beyond", 0)
        return ChargeEntry(attempt, event, fields["steps"], fields["run_key"], allowance, time, beyond)
    if kind == "correction":
        return CorrectionEntry(attempt, event, fields["client_steps"], fields["server_steps"], allowance, time)
    raise KeyError(kind)


@dataclass(slots=True)
class Tally:
    """The sums of all entries.

    Attributes:
        entries: charges and corrections, in order.
        charges: charges by attempt, in order.
        sealed: sealed updates by attempt, in order.
        names: names of the files of sealed updates, by attempt.
        places: place of the charge among all charges, by the name of a file, for every name that this log gives.
        run_keys: fingerprint of the key that opened a run, by the run's name.
        history: number of steps of each event, over all runs, corrections included.
        asked: number of these steps that count as questions, by event.
        relation: relation that the account promises; None: nothing was charged or disclosed.
        unit: unit of privacy that it promises; charges before which none was recorded are for a record.
    """

    entries: list[ChargeEntry | CorrectionEntry] = field(default_factory=list)
    charges: dict[Attempt, ChargeEntry] = field(default_factory=dict)
    sealed: dict[Attempt, SealedEntry] = field(default_factory=dict)
    names: dict[Attempt, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    run_keys: dict[str, str] = field(default_factory=dict)
    history: dict[Event, int] = field(default_factory=dict)
    asked: dict[Event, int] = field(default_factory=dict)
    relation: NeighbouringRelation | None = None
    unit: Unit = RECORD
    _chained: str = ""  # a hash of all entries so far, chained

    @property
    def allowance(self) -> Allowance | None:
        """The data owner's latest terms; None before anything is charged."""
        return self.entries[-1].allowance if self.entries else None

    def add(self, entry: Entry, payload: bytes) -> None:
        """Add one more entry, with its bytes in the log."""
        self._chained = sha256(self._chained.encode() + payload).hexdigest()
        if isinstance(entry, RelationEntry):
            self.relation, self.unit = entry.relation, entry.unit
            return
        if isinstance(entry, SealedEntry):
            self.sealed[entry.attempt] = entry
            return
        self.entries.append(entry)
        self.relation = self.relation or entry.event.relation
        self.history[entry.event] = self.history.get(entry.event, 0) + entry.steps
        if counts_as_question(entry):
            self.asked[entry.event] = self.asked.get(entry.event, 0) + entry.steps
        if isinstance(entry, ChargeEntry):
            self.charges[entry.attempt] = entry
            self.names[entry.attempt] = name = seals.name_of(self._chained)
            self.places[name] = len(self.charges)
            self.run_keys.setdefault(entry.attempt.run_id, entry.run_key)


class TallyFile:
    """A log's entries up to the last transaction, and the folder of the updates that it sealed.

    Args:
        file: a log that `fedprivacy.guard.log.create` made.
    """

    def __init__(self, file: Path) -> None:
        self.tally = Tally()
        self._log = EntryLog(file)
        self._added = 0

    @property
    def file(self) -> Path:
        """Path of the log, with links resolved: a link leads to the same account."""
        return self._log.file

    @property
    def identity(self) -> str:
        """Identity of the log; known in a transaction, and afterwards, as `folder` is."""
        return self._log.identity

    @property
    def folder(self) -> Path:
        """Folder of the sealed updates."""
        return seals.folder_of(self.file, self.identity)

    @contextmanager
    def transaction(self) -> Iterator[Write]:
        """Lock the file, bring `tally` up to date, and yield a function that writes one entry and adds it.

        Raises:
            LogDamagedError: the folder holds an update that this log never charged, see `fedprivacy.guard.seals`.
            LogError: see `EntryLog.transaction`.
        """
        with self._log.transaction() as append:

            def write(entry: Entry) -> None:
                append(encode_entry(entry))
                self._catch_up()

            self._catch_up()
            self._check_updates()
            yield write

    def _check_updates(self) -> None:
        """Refuse the log if updates exist that it never charged: later charges have been lost, however whole it is."""
        try:
            updates = seals.bearing_witness(self.file, self.identity)
            unknown = [name for name in updates if name not in self.tally.places]
        except OSError as error:
            raise LogWriteError(self.folder, error, undone=True) from error
        if unknown:
            raise self._log.damage_error(
                self._added,
                f"it ends here, and {updates[min(unknown)]} holds an update that it never charged ({min(unknown)}). An "
                "older copy, or another log, was put back: put back the newest one, if there is one",
            )

    def _catch_up(self) -> None:
        for payload in self._log.entries[self._added :]:
            try:
                entry = decode_entry(payload)
            except ValueError as error:
                raise self._log.damage_error(self._added, str(error)) from error
            self.tally.add(entry, payload)
            self._added += 1


def renew(file: Path) -> Path:
    """Rename a guard's account, beside the old name; the next charge starts a new account.

    Formal guarantee: the releases of both accounts together are (epsilon_1 + epsilon_2, delta_1 + delta_2)-
    differentially private, by basic composition. If the second budget depends on what the first account released, this
    holds for the largest budget that could have been chosen. Nothing is deleted: the old account can be read.

    Returns:
        The new name of the old account.

    Raises:
        LogError: the file is busy, damaged or not writable.
        OSError: the file cannot be renamed.
    """
    kept = TallyFile(file)
    file = kept.file
    with kept.transaction():
        aside = _aside(file, renewals(file) + 1)
        seals.move(file, kept.identity, aside)
        name_durably(file, aside)
    return aside


def renewals(file: Path) -> int:
    """Return how many former accounts lie beside an account's file."""
    return next(number for number in count() if not _aside(file, number + 1).exists())


def _aside(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")
