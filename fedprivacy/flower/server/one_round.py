"""One round: the opened round, whose possible cost is charged, the checks of its replies, and its outcome.

Replies are checked against their grants and the global model: only those that pass may be averaged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedprivacy._support import signing
from fedprivacy.flower.client.release import ARRAYS, digest
from fedprivacy.flower.server.nodes import EnrolledClient, Replies
from fedprivacy.flower.simulated.populations import Order
from fedprivacy.flower.unpublished import is_unreached
from fedprivacy.flower.wire.messages import MessageError, QuestionGrant, Receipt, Refusal, RefusalCode, SpendingMessage
from fedprivacy.flower.wire.payloads import ArraysError, Form, checked_arrays
from fedprivacy.ledger.replay import Evidence
from fedprivacy.participation import DROPPED_OUT, TOO_LATE, Closed
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.wording import count_text

log = logging.getLogger("fedprivacy.server")

NO_REPLY = "no-reply"


class Instruction(Protocol):
    """A record that tells one client its work: a grant, or without privacy an assignment."""

    @property
    def name(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    def to_record(self) -> ConfigRecord: ...


@dataclass(frozen=True)
class OpenRound:
    """An attempt at a round whose clients may now be asked: their possible cost is charged.

    Attributes:
        attempt: the attempt that was charged.
        arrays: the global model that is sent.
        eligible: number of clients that had budget left.
        clients: clients that were chosen and charged, by node id.
        template: a message of the wrapped strategy to one of them; None: it chose no client.
        messages, grants: in rounds by messages, the message to each client, and its grant or assignment, by
            node id.
        orders: in rounds of a population, the order for each client that trains.
        asked_before: nodes that may have had their grants before: a refusal says nothing about their earlier training.
        began: begin of the round in simulated seconds; infinite if no client is ever there again.
        passed_over: whether clients had budget left but were not drawn, or not there.
        sampled: whether the clients joined by Poisson sampling, for a noisy average. The sample may be empty, or hold
            clients without budget; the round is released all the same.
        over: the reason why no round can be opened, if it depends on the number of rounds alone; empty: none.
    """

    attempt: Attempt
    arrays: ArrayRecord
    eligible: int = 0
    clients: Mapping[int, EnrolledClient] = field(default_factory=dict)
    template: Message | None = None
    messages: Sequence[Message] = ()
    grants: Mapping[int, Instruction] = field(default_factory=dict)
    orders: Sequence[Order] = ()
    asked_before: frozenset[int] = frozenset()
    began: float = 0.0
    passed_over: bool = False
    sampled: bool = False
    over: str = ""

    @property
    def asked(self) -> int:
        """The number of clients that are asked."""
        return len(self.grants) + len(self.orders)

    @property
    def settings(self) -> ConfigRecord:
        """Settings that the wrapped strategy sends besides the model."""
        return settings_in(self.template) if self.template else ConfigRecord()

    @property
    def ends_the_run(self) -> bool:
        """Tell whether the run has nothing more to do. An empty Poisson sample does not end a run."""
        return bool(self.over) or not (self.asked or self.sampled)

    @property
    def why_nobody(self) -> str:
        """The reason why no client is asked."""
        if self.over:
            return self.over
        if not self.eligible:
            return "no client has budget left"
        if math.isinf(self.began):
            return "no client with budget left is ever there again"
        return f"{count_text(self.eligible, 'client')} with budget left are too few for the strategy"


@dataclass(frozen=True)
class RoundOutcome:
    """The outcome of a round.

    Attributes:
        opened: the round.
        updates: the updates that can be averaged, in the form of the round's transport.
        participants: clients whose updates may be averaged, sorted.
        failures: clients without a usable update, with a short constant reason, sorted.
        confirmed: clients that have spent their charge, by client_id, with their signed receipts; None in a simulation.
        clipping_norms: clipping norm that the next step of each of these clients would have, by client_id.
        untouched: clients that refused before they read a record, when they were asked for the first time: their
            charges are returned.
        exhausted: clients whose own guard says that their budget is spent.
        missed: clients that the simulation let drop out, or be too late.
        all_lost: whether no client has an update because all were charged for one that is gone.
        evaluated: releases of local evaluations, by client_id, sorted.
        ended: end of the round in simulated seconds.
    """

    opened: OpenRound
    updates: Any = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    confirmed: Mapping[str, Evidence | None] = field(default_factory=dict)
    clipping_norms: Mapping[str, float] = field(default_factory=dict)
    untouched: Sequence[str] = ()
    exhausted: AbstractSet[str] = frozenset()
    missed: AbstractSet[str] = frozenset()
    all_lost: bool = False
    evaluated: Mapping[str, NoisySums] = field(default_factory=dict)
    ended: float = 0.0


def settings_in(message: Message) -> ConfigRecord:
    """Settings that the wrapped strategy has put into a message besides the model."""
    return next(iter(message.content.config_records.values()), ConfigRecord())


@dataclass(frozen=True, slots=True)
class GrantOutcome:
    """The outcome of one grant: an update that may be averaged, or the constant reason why there is none.

    Attributes:
        receipt: the receipt that matches the grant, whether or not the update is used.
        evidence: the same, as the ledger keeps it; None in a simulation, where none is signed.
        untouched: whether the client refused before it read a record, when it was asked for the first time.
    """

    update: Message | None = None
    failure: str = ""
    receipt: Receipt | None = None
    evidence: Evidence | None = None
    refusal: RefusalCode | None = None
    untouched: bool = False


Verdicts = Mapping[str, GrantOutcome]
"""The outcome of each grant, by client_id."""


def sort_replies(opened: OpenRound, replies: Replies) -> Verdicts:
    """Match every reply, by the node that was asked, with the grant that it answers."""
    asked_before = opened.asked_before | replies.asked_twice
    return {
        grant.client_id: _verdict(replies.first[node_id], node_id, opened, asked_before=node_id in asked_before)
        if node_id in replies.first
        else GrantOutcome(failure=NO_REPLY)
        for node_id, grant in opened.grants.items()
    }


def usable(verdicts: Verdicts) -> dict[str, Message]:
    """Replies that may be averaged, by client_id: in an order that is the same in every run."""
    return {client_id: each.update for client_id, each in sorted(verdicts.items()) if each.update is not None}


def in_time(verdicts: Verdicts, closed: Closed) -> Verdicts:
    """Return the verdicts without the updates that did not come in time."""
    missed = {
        client_id: replace(verdicts[client_id], update=None, failure=reason)
        for client_id, reason in closed.missed.items()
    }
    return {**verdicts, **missed}


def evaluations(verdicts: Verdicts, scores: Collection[str]) -> dict[str, NoisySums]:
    """Releases of the clients' local evaluations, by client_id: in an order that is the same in every run.

    Args:
        verdicts: the verdicts of a round.
        scores: the scores of this server's task.
    """
    released = {}
    for client_id, each in sorted(verdicts.items()):
        receipt = each.receipt
        if receipt is None or not receipt.noisy_sums or each.failure == TOO_LATE:
            continue
        if len(receipt.noisy_sums) == 1 + len(scores):
            released[client_id] = NoisySums(receipt.event, receipt.noisy_sums)
        else:
            log.warning("Client %s evaluates other scores than this server's task; update one of them.", client_id)
    return released


def outcome_of(opened: OpenRound, verdicts: Verdicts, ended: float = 0.0, scores: Collection[str] = ()) -> RoundOutcome:
    """Return the outcome of a round from the verdicts on its replies.

    Args:
        opened: the round.
        verdicts: the verdicts on all its grants.
        ended: end of the round in simulated seconds.
        scores: the scores of a local evaluation.
    """
    receipts = {client_id: each.receipt for client_id, each in verdicts.items() if each.receipt}
    updates, failures = usable(verdicts), {c: each.failure for c, each in sorted(verdicts.items()) if each.failure}
    return RoundOutcome(
        opened,
        updates,
        participants=tuple(updates),
        failures=failures,
        confirmed={client_id: verdicts[client_id].evidence for client_id in receipts},
        clipping_norms={client_id: receipt.clipping_norm for client_id, receipt in receipts.items()},
        untouched=[client_id for client_id, each in verdicts.items() if each.untouched],
        exhausted={c for c, each in verdicts.items() if each.refusal is RefusalCode.BUDGET_EXHAUSTED},
        missed={c for c, reason in failures.items() if reason in {DROPPED_OUT, TOO_LATE}},
        all_lost={each.refusal for each in verdicts.values()} == {RefusalCode.ALREADY_CHARGED},
        evaluated=evaluations(verdicts, scores),
        ended=ended,
    )


class Unusable(Exception):
    """The constant reason why a reply is dropped."""


def _verdict(reply: Message, node_id: int, opened: OpenRound, *, asked_before: bool) -> GrantOutcome:
    public_key, receipt = opened.clients[node_id].public_key, None
    try:
        refusal = _refusal(reply)
        if refusal is not None:
            untouched = refusal.before_any_record and not asked_before
            return GrantOutcome(failure=refusal.value, refusal=refusal, untouched=untouched)
        if isinstance(grant := opened.grants[node_id], SpendingMessage):  # a baseline's spends nothing
            receipt = checked_receipt(reply, grant, public_key)
        update = _decode_update(reply.content.get(ARRAYS), opened.arrays)
        answered = grant.questions if isinstance(grant, QuestionGrant) else ""
        if receipt and public_key and receipt.update != digest({n: a.numpy() for n, a in update.items()}, answered):
            raise Unusable("receipt-of-another-update")
    except Unusable as problem:
        return GrantOutcome(None, str(problem), receipt, evidence(receipt, public_key) if receipt else None)
    reply.content = RecordDict({ARRAYS: update})
    return GrantOutcome(reply, "", receipt, evidence(receipt, public_key) if receipt else None)


def _refusal(reply: Message) -> RefusalCode | None:
    if reply.has_error():
        raise Unusable("unreachable" if is_unreached(reply) else "app-failed")
    try:
        return Refusal.of(reply).code if Refusal.name in reply.content else None
    except MessageError as error:
        raise Unusable("malformed-refusal") from error


def checked_receipt(reply: Message, grant: SpendingMessage, public_key: bytes) -> Receipt:
    """The reply's receipt for a grant, signed with the client's key, given in PEM; unsigned in a simulation.

    Raises:
        Unusable: there is no receipt, it is for something else, or somebody else signed it.
    """
    try:
        receipt = Receipt.of(reply)
    except MessageError as error:
        raise Unusable("malformed-receipt") from error
    if not receipt.matches(grant):
        raise Unusable("receipt-does-not-match-grant")
    signed = receipt.signed_bytes()
    if public_key and not signing.signed_by_client(public_key, receipt.purpose, signed, receipt.signature):
        raise Unusable("forged-receipt")
    return receipt


def evidence(receipt: Receipt, public_key: bytes) -> Evidence | None:
    """A signed receipt as the ledger keeps it."""
    if not public_key:
        return None
    return Evidence(receipt.signed_bytes().decode(), receipt.signature, public_key.decode())


def _decode_update(arrays: object, global_arrays: ArrayRecord) -> ArrayRecord:
    """The update, rebuilt from its decoded values."""
    model = {name: array.numpy() for name, array in global_arrays.items()}
    forms = {name: Form(values.shape, values.dtype) for name, values in model.items()}
    try:
        return ArrayRecord({name: Array(values) for name, values in checked_arrays(arrays, forms).items()})
    except ArraysError as error:
        raise Unusable(str(error)) from error
