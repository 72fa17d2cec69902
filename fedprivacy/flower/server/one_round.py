"""One round as two values: the opened round, whose possible cost is charged, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedprivacy.flower.server.registry import EnrolledClient
from fedprivacy.flower.simulated.orders import Order
from fedprivacy.ledger.replay import Evidence
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.wording import count_text


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
