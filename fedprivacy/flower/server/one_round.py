"""One round as two values: opened, when what it may cost is charged; and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedprivacy.flower.server.registry import EnrolledClient
from fedprivacy.flower.simulated.orders import Order
from fedprivacy.ledger.replay import Evidence
from fedprivacy.participation import Course, Dispatch
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.rounds import Buffered
from fedprivacy.values.wording import count_text


class Instruction(Protocol):
    """A record that tells one client what to do: a grant, or what a baseline assigns."""

    @property
    def name(self) -> str: ...  # noqa: D102 - of the record
    @property
    def client_id(self) -> str: ...  # noqa: D102
    def to_record(self) -> ConfigRecord: ...  # noqa: D102


@dataclass(frozen=True)
class OpenRound:
    """An attempt at a round, when its clients may be asked: what they may cost is charged.

    Attributes:
        attempt: what was charged.
        arrays: the global model that is sent.
        eligible: how many clients had budget left.
        clients: who was chosen, and charged, by node id.
        template: a message of the wrapped strategy to one of them; None: it chose nobody.
        messages, grants: by messages: one for each client, and what each may spend (or, in a baseline, is assigned), by
            node id.
        orders: of a population: one for each client that trains.
        asked_before: nodes that may have had their grants before: a refusal says nothing of what they did then.
        began: when, in simulated seconds; infinite where nobody is ever there again.
        passed_over: whether clients had budget left and were not drawn, or not there.
        sampled: whether the clients joined by Poisson sampling, for a noisy average: maybe nobody, and maybe clients
            that have no budget left. The round is released all the same.
        over: why no round can be opened, where that depends on the number of rounds alone; empty: one can.
        course: what will happen in an asynchronous round; None: it ends together.
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
    course: Course | None = None

    @property
    def asked(self) -> int:
        """How many clients are asked."""
        return len(self.grants) + len(self.orders)

    @property
    def settings(self) -> ConfigRecord:
        """What the wrapped strategy sends besides the model."""
        return settings_in(self.template) if self.template else ConfigRecord()

    @cached_property
    def dispatched(self) -> dict[str, Dispatch]:
        """Who begins to train in an asynchronous round, by client_id."""
        return {dispatch.client_id: dispatch for dispatch in self.course.dispatched} if self.course else {}

    def trains(self, client_id: str) -> bool:
        """Whether a client that was charged will answer: in an asynchronous round some go away."""
        return self.course is None or self.dispatched[client_id].answers

    @property
    def ends_the_run(self) -> bool:
        """Whether there is nothing more to do. That nobody joined by chance does not end a run."""
        if self.course is not None:  # while somebody trains, there is
            return self.course.empty
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
class Settlement:
    """What became of the charges of one attempt.

    Attributes:
        attempt: what was charged.
        confirmed: clients that have spent it, by client_id, each with its signed receipt; None in a simulation.
        clipping_norms: that the next step of each of these would have, by client_id.
        untouched: clients that refused before they read a record, when they were asked for the first time.
    """

    attempt: Attempt
    confirmed: Mapping[str, Evidence | None]
    clipping_norms: Mapping[str, float]
    untouched: Sequence[str] = ()


@dataclass(frozen=True)
class RoundOutcome:
    """What became of a round.

    Attributes:
        opened: the round.
        updates: what can be averaged, in the form in which the round's transport has it.
        participants: clients whose updates may be averaged, sorted.
        failures: clients without a usable update, with a short constant reason, sorted.
        settlements: what is to be written into the books.
        exhausted: clients whose own guard says that their budget is spent.
        missed: clients that the simulation let drop out, or be too late.
        all_lost: whether nobody has an update because all were charged for one that is gone.
        evaluated: what local evaluations released, by client_id, sorted.
        ended: when it was over, in simulated seconds.
        buffered: what an asynchronous round's step was made of; None: the round ended together.
    """

    opened: OpenRound
    updates: Any = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    settlements: Sequence[Settlement] = ()
    exhausted: AbstractSet[str] = frozenset()
    missed: AbstractSet[str] = frozenset()
    all_lost: bool = False
    evaluated: Mapping[str, NoisySums] = field(default_factory=dict)
    ended: float = 0.0
    buffered: Buffered | None = None


def settings_in(message: Message) -> ConfigRecord:
    """What the wrapped strategy has put into a message besides the model."""
    return next(iter(message.content.config_records.values()), ConfigRecord())
