"""Which replies may be averaged: everything that a client sends is checked against its grant and the global model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedprivacy._support import signing
from fedprivacy._support.spans import spanned
from fedprivacy.flower.baseline.assignment import Assignment
from fedprivacy.flower.client.release import ARRAYS, digest
from fedprivacy.flower.server.exchange import Answers
from fedprivacy.flower.server.registry import EnrolledClient
from fedprivacy.flower.wire.checked_arrays import ArraysError, Form, checked_arrays
from fedprivacy.flower.wire.messages import Grant, MessageError, QuestionGrant, Receipt, Refusal, RefusalCode
from fedprivacy.ledger.replay import Evidence
from fedprivacy.participation import DROPPED_OUT, TOO_LATE, Closed
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.rounds import Buffered
from fedprivacy.values.wording import count_text

NO_REPLY = "no-reply"


@dataclass(frozen=True)
class OpenRound:
    """An attempt at a round, when its messages may leave: what they may cost is charged.

    Attributes:
        attempt: what was charged.
        arrays: the global model that is sent.
        eligible: how many clients had budget left.
        messages: one for each grant.
        grants, clients: by node id (a baseline assigns where others grant), for the nodes that the strategy chose.
        asked_before: nodes that may have had their grants before: a refusal says nothing of what they did then.
        began: when, in simulated seconds; infinite where nobody is ever there again.
        passed_over: whether clients had budget left and were not drawn, or not there.
        sampled: whether the clients joined by Poisson sampling, for a noisy average: maybe nobody, and maybe clients
            that have no budget left. The round is released all the same.
        over: why no round can be opened, where that depends on the number of rounds alone; empty: one can.
    """

    attempt: Attempt
    arrays: ArrayRecord
    eligible: int = 0
    messages: Sequence[Message] = ()
    grants: Mapping[int, Grant | QuestionGrant | Assignment] = field(default_factory=dict)
    clients: Mapping[int, EnrolledClient] = field(default_factory=dict)
    asked_before: frozenset[int] = frozenset()
    began: float = 0.0
    passed_over: bool = False
    sampled: bool = False
    over: str = ""

    @property
    def asked(self) -> int:
        """How many clients are asked."""
        return len(self.grants)

    @property
    def ends_the_run(self) -> bool:
        """Whether there is nothing more to do. That nobody joined by chance does not end a run."""
        return bool(self.over) or not (self.asked or self.sampled)

    @property
    def why_nobody(self) -> str:
        """Why nobody is asked."""
        if self.over:
            return self.over
        if not self.eligible:
            return "no client has budget left"
        if math.isinf(self.began):
            return "no client with budget left is ever there again"
        return f"{count_text(self.eligible, 'client')} with budget left are too few for the strategy"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one grant: an update that may be averaged, or in constant words why there is none.

    Attributes:
        receipt: that matches the grant, whether or not the update is used.
        evidence: the same, as the ledger keeps it; None in a simulation, where none is signed.
        untouched: whether it refused before it read a record, when it was asked for the first time.
    """

    update: Message | None = None
    failure: str = ""
    receipt: Receipt | None = None
    evidence: Evidence | None = None
    refusal: RefusalCode | None = None
    untouched: bool = False


@dataclass(frozen=True)
class RoundOutcome:
    """What became of a round's grants, by client_id, and when it was over, in simulated seconds."""

    opened: OpenRound
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    ended: float = 0.0

    @cached_property
    def updates(self) -> dict[str, Message]:
        """Replies that may be averaged, by client_id: in an order that is the same in every run."""
        return {c: verdict.update for c, verdict in sorted(self.verdicts.items()) if verdict.update is not None}

    @property
    def participants(self) -> tuple[str, ...]:
        """Clients whose updates may be averaged, sorted."""
        return tuple(self.updates)

    @cached_property
    def failures(self) -> dict[str, str]:
        """Clients without a usable update, with a short constant reason, sorted."""
        return {c: verdict.failure for c, verdict in sorted(self.verdicts.items()) if verdict.failure}

    @property
    def buffered(self) -> Buffered | None:
        """What an asynchronous round's step was made of; None: the round ended together."""
        return None

    @property
    def exhausted(self) -> set[str]:
        """Clients whose own guard says that their budget is spent."""
        return {c for c, verdict in self.verdicts.items() if verdict.refusal is RefusalCode.BUDGET_EXHAUSTED}

    @property
    def missed(self) -> set[str]:
        """Clients that the simulation let drop out, or be too late."""
        return {c for c, verdict in self.verdicts.items() if verdict.failure in {DROPPED_OUT, TOO_LATE}}

    def closed_by(self, closed: Closed) -> RoundOutcome:
        """The same, where only those answers count that came in time."""
        missed = {
            client_id: replace(self.verdicts[client_id], update=None, failure=reason)
            for client_id, reason in closed.missed.items()
        }
        return replace(self, verdicts={**self.verdicts, **missed}, ended=closed.ended)

    @property
    def all_lost(self) -> bool:
        """Whether nobody has an update because all were charged for one that is gone."""
        refusals = {verdict.refusal for verdict in self.verdicts.values()}
        return refusals == {RefusalCode.ALREADY_CHARGED}


@spanned("sorting replies")
def sort_replies(opened: OpenRound, answers: Answers) -> RoundOutcome:
    """Match every reply, by the node that was asked, with the grant that it answers."""
    asked_before = opened.asked_before | answers.asked_twice
    return RoundOutcome(
        opened,
        {
            grant.client_id: _verdict(answers.replies[node_id], node_id, opened, asked_before=node_id in asked_before)
            if node_id in answers.replies
            else Verdict(failure=NO_REPLY)
            for node_id, grant in opened.grants.items()
        },
    )


class Unusable(Exception):
    """Why a reply is dropped, in constant words."""


def _verdict(reply: Message, node_id: int, opened: OpenRound, *, asked_before: bool) -> Verdict:
    public_key, receipt = opened.clients[node_id].public_key, None
    try:
        refusal = _refusal(reply)
        if refusal is not None:
            untouched = refusal.before_any_record and not asked_before
            return Verdict(failure=refusal.value, refusal=refusal, untouched=untouched)
        if not isinstance(grant := opened.grants[node_id], Assignment):
            receipt = checked_receipt(reply, grant, public_key)
        update = _decoded(reply.content.get(ARRAYS), opened.arrays)
        if receipt and public_key and receipt.update != _digest(update, grant):
            raise Unusable("receipt-of-another-update")
    except Unusable as problem:
        return Verdict(None, str(problem), receipt, evidence(receipt, public_key) if receipt else None)
    reply.content = RecordDict({ARRAYS: update})
    return Verdict(reply, "", receipt, evidence(receipt, public_key) if receipt else None)


def _digest(update: ArrayRecord, grant: Grant | QuestionGrant | Assignment) -> str:
    """What a receipt for this update says of it, or of these answers to a grant's questions."""
    asked = grant.questions if isinstance(grant, QuestionGrant) else ""
    return digest({name: array.numpy() for name, array in update.items()}, asked)


def _refusal(reply: Message) -> RefusalCode | None:
    if reply.has_error():
        raise Unusable(f"client-error-{reply.error.code}")
    try:
        return Refusal.of(reply).code if Refusal.name in reply.content else None
    except MessageError as error:
        raise Unusable("malformed-refusal") from error


def checked_receipt(reply: Message, grant: Grant | QuestionGrant, public_key: bytes) -> Receipt:
    """The reply's receipt for a grant, signed by the client with this key in PEM; with none in a simulation.

    Raises:
        Unusable: there is none, it is for something else, or somebody else signed it.
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


def _decoded(arrays: object, global_arrays: ArrayRecord) -> ArrayRecord:
    """The update, rebuilt from its decoded values."""
    model = {name: array.numpy() for name, array in global_arrays.items()}
    forms = {name: Form(values.shape, values.dtype) for name, values in model.items()}
    try:
        return ArrayRecord({name: Array(values) for name, values in checked_arrays(arrays, forms).items()})
    except ArraysError as error:
        raise Unusable(str(error)) from error
