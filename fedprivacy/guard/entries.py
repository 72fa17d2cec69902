"""What stands in a guard's log: charges, corrections and sealed updates, as values and as JSON.

Times are for people. Nothing is decided by them, because a host's clock may jump.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.event_codec import as_fields, from_fields
from fedprivacy.values.events import Event


@dataclass(frozen=True, slots=True)
class ChargeEntry:
    """Steps that may be executed, because they count already.

    Attributes:
        attempt: what is charged.
        event: one step's mechanism.
        steps: how many of them.
        run_key: fingerprint of the server's key, see `fingerprint`.
        allowance: in force at the time.
        time: UTC, for people.
    """

    attempt: Attempt
    event: Event
    steps: int
    run_key: str
    allowance: Allowance
    time: str


@dataclass(frozen=True, slots=True)
class CorrectionEntry:
    """Steps that the server's ledger counts and this log did not: since then, they count here too.

    Attributes:
        attempt: what the grant that brought the figure was for.
        event: the mechanism that the figures are about.
        client_steps: what this log counted, the grant not included.
        server_steps: what the server's ledger counted, the grant not included; the larger figure.
        allowance: in force at the time.
        time: UTC, for people.
    """

    attempt: Attempt
    event: Event
    client_steps: int
    server_steps: int
    allowance: Allowance
    time: str

    @property
    def steps(self) -> int:
        """How many steps more count from now on."""
        return self.server_steps - self.client_steps


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """An update that lies on the disk and may be sent, again and again: it cost what its charge says.

    Attributes:
        attempt: what was charged for it.
        name: of its file.
        sha256: of its bytes, in hexadecimal.
        time: UTC, for people.
    """

    attempt: Attempt
    name: str
    sha256: str
    time: str


Entry = ChargeEntry | CorrectionEntry | SealedEntry


def now() -> str:
    """The time that entries carry: UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def fingerprint(run_key: str) -> str:
    """What a log keeps of a server's key: its SHA-256 in hexadecimal, which is short whatever the key is."""
    return sha256(run_key.encode(errors="surrogatepass")).hexdigest()


def encoded(entry: Entry) -> bytes:
    """An entry as it stands in the log."""
    fields = {"kind": _KINDS[type(entry)], **entry.attempt._asdict(), "time": entry.time}
    match entry:
        case ChargeEntry():
            fields |= _spent_fields(entry) | {"steps": entry.steps, "run_key": entry.run_key}
        case CorrectionEntry():
            fields |= _spent_fields(entry)
            fields |= {"client_steps": entry.client_steps, "server_steps": entry.server_steps}
        case SealedEntry():
            fields |= {"name": entry.name, "sha256": entry.sha256}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decoded(payload: bytes) -> Entry:
    """The entry that `encoded` wrote.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = json.loads(payload)
        attempt = Attempt.named_in(fields)
        return _DECODERS[fields["kind"]](attempt, fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no entry of version 1 of a guard ({error!r})") from error


def _spent_fields(entry: ChargeEntry | CorrectionEntry) -> dict[str, Any]:
    budget = entry.allowance.budget
    return {
        "event": as_fields(entry.event),
        "epsilon": budget.epsilon if budget.enforced else None,
        "delta": budget.delta,
        "filter": entry.allowance.filter,
    }


def _allowance(fields: Mapping[str, Any]) -> Allowance:
    epsilon = math.inf if fields["epsilon"] is None else fields["epsilon"]
    return Allowance(PrivacyBudget(epsilon, fields["delta"]), fields["filter"])


def _charge(attempt: Attempt, fields: Mapping[str, Any]) -> ChargeEntry:
    event = from_fields(fields["event"])
    return ChargeEntry(attempt, event, fields["steps"], fields["run_key"], _allowance(fields), fields["time"])


def _correction(attempt: Attempt, fields: Mapping[str, Any]) -> CorrectionEntry:
    event, steps = from_fields(fields["event"]), (fields["client_steps"], fields["server_steps"])
    return CorrectionEntry(attempt, event, *steps, _allowance(fields), fields["time"])


def _sealed(attempt: Attempt, fields: Mapping[str, Any]) -> SealedEntry:
    return SealedEntry(attempt, fields["name"], fields["sha256"], fields["time"])


_KINDS: dict[type[Entry], str] = {ChargeEntry: "charge", CorrectionEntry: "correction", SealedEntry: "sealed"}
_DECODERS: dict[str, Callable[[Attempt, Mapping[str, Any]], Entry]] = {
    "charge": _charge,
    "correction": _correction,
    "sealed": _sealed,
}
