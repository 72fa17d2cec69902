"""Receipts in the journal: a client's own word for what it spent, which nobody else could have given."""

from __future__ import annotations

import json
from typing import Any

from fedprivacy._support.signing import RECEIPT, signed_by_client
from fedprivacy.ledger.replay import BrokenJournalError, ChargeKey, Evidence, Replay
from fedprivacy.tasks.identity import key_hash
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.event_codec import ROW

_CHARGED = ("steps", *ROW)


def check_receipts(number: int, entry: dict[str, Any], replay: Replay) -> None:
    """Check the receipts of a settlement that was just entered.

    Args:
        number: of the entry.
        entry: of any kind.
        replay: after it.

    Raises:
        BrokenJournalError: one is not signed with its client's key, or says something else than what was charged.
    """
    if entry["kind"] != "settlement":
        return
    for dataset_id, evidence in entry["receipts"].items():
        if evidence:
            key = ChargeKey(dataset_id, *Attempt.named_in(entry))
            try:
                _check(Evidence(*evidence), key, replay)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
                raise BrokenJournalError(f"entry {number}: the receipt for {dataset_id} {problem}") from problem


def _check(evidence: Evidence, key: ChargeKey, replay: Replay) -> None:
    said, charge, public_key = json.loads(evidence.receipt), replay.charges[key], evidence.public_key.encode()
    if replay.keys.get(said["client_id"]) != key_hash(public_key):
        raise ValueError("comes with another key than its client has")
    if not signed_by_client(public_key, RECEIPT, evidence.receipt.encode(), evidence.signature):
        raise ValueError("is not signed by its client")
    if key[1:] != Attempt.named_in(said):
        raise ValueError("is for another round")
    if any(said[name] != getattr(charge, name) for name in _CHARGED):
        raise ValueError("is for something else than what was charged")
