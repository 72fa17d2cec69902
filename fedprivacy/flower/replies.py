"""Which replies may be averaged: everything that a client sends is checked against its grant and the global model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedprivacy.flower.records import RECEIPT, REFUSAL, Grant, Receipt, RecordError, Refusal, RefusalCode
from fedprivacy.flower.release import ARRAYS

NO_REPLY = "no-reply"


@dataclass(frozen=True, slots=True)
class OpenRound:
    """A round whose messages are on their way.

    Attributes:
        number: the round.
        arrays: the global model that was sent.
        grants: by node id.
    """

    number: int
    arrays: ArrayRecord
    grants: Mapping[int, Grant]


@dataclass(slots=True)
class RoundOutcome:
    """What became of a round's grants, by client_id.

    Attributes:
        updates: replies that may be averaged.
        failures: clients without a usable update, with a short constant reason.
        spent: clients whose receipt matched, whether or not the update is used.
        untouched: clients that refused before they read a record.
        exhausted: clients whose own odometer says that their budget is spent.
    """

    updates: dict[str, Message] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    spent: list[str] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)
    exhausted: list[str] = field(default_factory=list)


def sort_replies(replies: Iterable[Message], opened: OpenRound) -> RoundOutcome:
    """Match every reply with the grant that it answers. The first reply to a grant counts; others are ignored."""
    outcome = RoundOutcome()
    unanswered = dict(opened.grants)
    for reply in replies:
        grant = unanswered.pop(reply.metadata.src_node_id, None)
        if grant is not None:
            _sort(reply, grant, opened.arrays, outcome)
    outcome.failures |= {grant.client_id: NO_REPLY for grant in unanswered.values()}
    return outcome


class _Unusable(Exception):
    """Why a reply is dropped, in constant words."""


def _sort(reply: Message, grant: Grant, global_arrays: ArrayRecord, outcome: RoundOutcome) -> None:
    client_id = grant.client_id
    try:
        refusal = _refusal(reply)
        if refusal is not None:
            _note_refusal(client_id, refusal, outcome)
            return
        _check_receipt(reply, grant)
        outcome.spent.append(client_id)
        update = _decoded(reply.content.get(ARRAYS), global_arrays)
    except _Unusable as problem:
        outcome.failures[client_id] = str(problem)
    else:
        reply.content = RecordDict({ARRAYS: update})
        outcome.updates[client_id] = reply


def _refusal(reply: Message) -> RefusalCode | None:
    if reply.has_error():
        raise _Unusable(f"client-error-{reply.error.code}")
    try:
        return Refusal.from_record(_record(reply, REFUSAL)).code if REFUSAL in reply.content else None
    except RecordError as error:
        raise _Unusable("malformed-refusal") from error


def _note_refusal(client_id: str, code: RefusalCode, outcome: RoundOutcome) -> None:
    outcome.failures[client_id] = code.value
    if code.before_any_record:
        outcome.untouched.append(client_id)
    if code is RefusalCode.BUDGET_EXHAUSTED:
        outcome.exhausted.append(client_id)


def _check_receipt(reply: Message, grant: Grant) -> None:
    try:
        receipt = Receipt.from_record(_record(reply, RECEIPT))
    except RecordError as error:
        raise _Unusable("malformed-receipt") from error
    if receipt != grant.receipt():
        raise _Unusable("receipt-does-not-match-grant")


def _decoded(arrays: object, global_arrays: ArrayRecord) -> ArrayRecord:
    """The update, rebuilt from its decoded values: what a client declares of an array's shape proves nothing."""
    if not isinstance(arrays, ArrayRecord) or arrays.keys() != global_arrays.keys():
        raise _Unusable("wrong-arrays")
    return ArrayRecord({name: _decoded_array(name, arrays[name], old.numpy()) for name, old in global_arrays.items()})


def _decoded_array(name: str, array: Array, expected: np.ndarray) -> Array:
    try:
        values = array.numpy()
    except Exception as error:  # whatever bytes a client may send
        raise _Unusable(f"undecodable:{name}") from error
    if values.shape != expected.shape or values.dtype != expected.dtype:
        raise _Unusable(f"wrong-shape:{name}")
    if not np.isfinite(values).all():
        raise _Unusable(f"not-finite:{name}")
    return Array(values)


def _record(reply: Message, name: str) -> ConfigRecord:
    record = reply.content.get(name)
    if not isinstance(record, ConfigRecord):
        raise RecordError(f"reply lacks {name}")
    return record
