"""Which replies may be averaged: everything that a client sends is checked against its grant and the global model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedprivacy._support import signing
from fedprivacy.flower.client.release import ARRAYS, digest
from fedprivacy.flower.wire.arrays import ArraysError, Form, checked_arrays
from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.flower.wire.messages import RECEIPT, REFUSAL, Grant, Receipt, Refusal, RefusalCode
from fedprivacy.ledger.replay import Evidence

NO_REPLY = "no-reply"


@dataclass(frozen=True, slots=True)
class OpenRound:
    """A round whose messages are on their way.

    Attributes:
        number: the round.
        arrays: the global model that was sent.
        grants: by node id.
        public_keys: of the clients that must sign their receipts, in PEM, by node id: all of a deployment's.
        asked_before: nodes that may have had their grants before: a refusal says nothing of what they did then.
    """

    number: int
    arrays: ArrayRecord
    grants: Mapping[int, Grant]
    public_keys: Mapping[int, bytes] = field(default_factory=dict)
    asked_before: frozenset[int] = frozenset()


@dataclass(slots=True)
class RoundOutcome:
    """What became of a round's grants, by client_id.

    Attributes:
        updates: replies that may be averaged.
        failures: clients without a usable update, with a short constant reason.
        spent: the receipts that matched, whether or not the update is used; None in a simulation, where none is signed.
        clipping_norms: where their clipping norms have arrived.
        untouched: clients that refused before they read a record, when they were asked for the first time.
        exhausted: clients whose own guard says that their budget is spent.
        lost: clients that had been charged when they died, and have no update to send.
    """

    updates: dict[str, Message] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    spent: dict[str, Evidence | None] = field(default_factory=dict)
    clipping_norms: dict[str, float] = field(default_factory=dict)
    untouched: list[str] = field(default_factory=list)
    exhausted: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def all_lost(self) -> bool:
        """Whether nobody has an update because all were charged for one that is gone."""
        return bool(self.lost) and not self.updates and set(self.failures) == set(self.lost)


def sort_replies(answers: Mapping[int, Message], opened: OpenRound) -> RoundOutcome:
    """Match every reply, by the node that was asked, with the grant that it answers."""
    outcome = RoundOutcome()
    for node_id, grant in opened.grants.items():
        if node_id in answers:
            _sort(answers[node_id], node_id, opened, outcome)
        else:
            outcome.failures[grant.client_id] = NO_REPLY
    return outcome


class Unusable(Exception):
    """Why a reply is dropped, in constant words."""


def _sort(reply: Message, node_id: int, opened: OpenRound, outcome: RoundOutcome) -> None:
    grant, public_key = opened.grants[node_id], opened.public_keys.get(node_id)
    client_id = grant.client_id
    try:
        refusal = _refusal(reply)
        if refusal is not None:
            _note_refusal(client_id, refusal, outcome, for_the_first_time=node_id not in opened.asked_before)
            return
        receipt = checked_receipt(reply, grant, public_key)
        outcome.spent[client_id] = evidence(receipt, public_key)
        outcome.clipping_norms[client_id] = receipt.clipping_norm
        update = _decoded(reply.content.get(ARRAYS), opened.arrays)
        if public_key and receipt.update != digest({name: array.numpy() for name, array in update.items()}):
            raise Unusable("receipt-of-another-update")
    except Unusable as problem:
        outcome.failures[client_id] = str(problem)
    else:
        reply.content = RecordDict({ARRAYS: update})
        outcome.updates[client_id] = reply


def _refusal(reply: Message) -> RefusalCode | None:
    if reply.has_error():
        raise Unusable(f"client-error-{reply.error.code}")
    try:
        return Refusal.from_record(_record(reply, REFUSAL)).code if REFUSAL in reply.content else None
    except MessageError as error:
        raise Unusable("malformed-refusal") from error


def _note_refusal(client_id: str, code: RefusalCode, outcome: RoundOutcome, *, for_the_first_time: bool) -> None:
    outcome.failures[client_id] = code.value
    if code.before_any_record and for_the_first_time:
        outcome.untouched.append(client_id)
    if code is RefusalCode.BUDGET_EXHAUSTED:
        outcome.exhausted.append(client_id)
    if code is RefusalCode.ALREADY_CHARGED:
        outcome.lost.append(client_id)


def checked_receipt(reply: Message, grant: Grant, public_key: bytes | None) -> Receipt:
    """The reply's receipt for a grant.

    Args:
        reply: with a receipt.
        grant: what it must be for.
        public_key: of the client that must have signed it, in PEM; None in a simulation.

    Raises:
        Unusable: there is none, it is for something else, or somebody else signed it.
    """
    try:
        receipt = Receipt.from_record(_record(reply, RECEIPT))
    except MessageError as error:
        raise Unusable("malformed-receipt") from error
    if not receipt.matches(grant):
        raise Unusable("receipt-does-not-match-grant")
    signed = receipt.signed_bytes()
    if public_key and not signing.signed_by_client(public_key, signing.RECEIPT, signed, receipt.signature):
        raise Unusable("forged-receipt")
    return receipt


def evidence(receipt: Receipt, public_key: bytes | None) -> Evidence | None:
    """A signed receipt as the ledger keeps it."""
    if not public_key:
        return None
    return Evidence(receipt.signed_bytes().decode(), receipt.signature, public_key.decode())


def _decoded(arrays: object, global_arrays: ArrayRecord) -> ArrayRecord:
    """The update, rebuilt from its decoded values."""
    model = {name: array.numpy() for name, array in global_arrays.items()}
    forms = {name: Form(values.shape, values.dtype) for name, values in model.items()}
    try:
        return ArrayRecord({name: Array(values) for name, values in checked_arrays(arrays, forms).items()})
    except ArraysError as error:
        raise Unusable(str(error)) from error


def _record(reply: Message, name: str) -> ConfigRecord:
    record = reply.content.get(name)
    if not isinstance(record, ConfigRecord):
        raise MessageError(f"reply lacks {name}")
    return record
