"""The steps of a round: who is asked and what that may cost, what came back, what it cost, what it averages to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedprivacy._support.failpoints import reach
from fedprivacy._support.spans import spanned
from fedprivacy.flower.baseline.accounts import BaselineAccounts
from fedprivacy.flower.baseline.assignment import Assignment
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.control import ServerControl, flat
from fedprivacy.flower.server.eligible import Eligible
from fedprivacy.flower.server.exchange import Answers, Correspondence, with_content
from fedprivacy.flower.server.noisy_average import UserLevelRounds
from fedprivacy.flower.server.registry import ClientRegistry, TooFewClientsError
from fedprivacy.flower.server.replies import OpenRound, RoundOutcome, sort_replies
from fedprivacy.flower.server.underway import Underway
from fedprivacy.flower.wire.messages import Grant
from fedprivacy.gradients import trainable_parameters
from fedprivacy.participation import TOO_LATE, Participation, Turnout
from fedprivacy.runs.plan import TrainingPlan
from fedprivacy.tasks.loader import scores_of
from fedprivacy.tasks.standardising import STANDARDISE, Standardise
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.rounds import Phase, PhaseObserver, Stage

log = logging.getLogger("fedprivacy.server")

_NOBODY = 0
"""The node that a reply comes from which no client has sent."""

_BETWEEN_LOOKS = 0.9
"""`sample_nodes` sleeps 1 s between looks: a strategy that looks again later than this is waiting for nodes."""


class RoundFailedError(RuntimeError):
    """A round without one usable update: going on would spend privacy for nothing."""


Opened = TypeVar("Opened", bound=OpenRound)
Came = TypeVar("Came")
Outcome = TypeVar("Outcome", bound=RoundOutcome)


class RoundSteps(Protocol[Opened, Came, Outcome]):
    """The steps of a run's rounds: each takes what the step before it gave. `Rounds` says what each does."""

    @property
    def accounts(self) -> RunAccounts | BaselineAccounts: ...  # noqa: D102
    @property
    def user_level(self) -> UserLevelRounds | None: ...  # noqa: D102
    @property
    def control(self) -> ServerControl: ...  # noqa: D102
    @property
    def underway(self) -> Underway | None: ...  # noqa: D102
    def open(  # noqa: D102
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, *, again: bool, at: float = 0.0
    ) -> Opened: ...
    def send(self, opened: Opened) -> Came: ...  # noqa: D102
    def settle(self, opened: Opened, answers: Came) -> Outcome: ...  # noqa: D102
    def evaluated(self, outcome: Outcome) -> dict[str, NoisySums]: ...  # noqa: D102
    def average(self, outcome: Outcome) -> tuple[ArrayRecord | None, MetricRecord | None]: ...  # noqa: D102


@dataclass(frozen=True)
class Rounds:
    """The rounds of one run by messages, once its clients are there."""

    strategy: Strategy  # samples and averages
    plan: TrainingPlan
    registry: ClientRegistry  # knows who is behind a node
    accounts: RunAccounts | BaselineAccounts  # grant and settle
    correspondence: Correspondence
    timeout: float  # seconds to wait for answers
    tell: PhaseObserver  # what the run is about to do
    participation: Participation  # who is there, and in time
    standardise: Standardise | None = None  # what the clients' inputs become first
    user_level: UserLevelRounds | None = None  # samples clients and averages with noise; None: the strategy does
    control: ServerControl = field(default_factory=ServerControl)  # what the algorithm's server half sends
    underway: Underway | None = None  # who trains between two rounds; None: they end together

    @spanned("opening the round")
    def open(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, *, again: bool, at: float = 0.0
    ) -> OpenRound:
        """Let the wrapped strategy choose among clients with budget left, and reserve what each may spend.

        Args:
            attempt: what is charged.
            arrays: the global model.
            config: what the wrapped strategy sends besides.
            again: whether this attempt was granted before, by a run that was stopped since.
            at: when the round before was over, in simulated seconds.

        Returns:
            The round; without messages when no client has budget left, or too few for the wrapped strategy, or none
            was drawn. With user-level noise clients join by Poisson sampling, and it may have none by chance.
        """
        if self.user_level and (over := self.user_level.why_over(attempt)):
            return OpenRound(attempt, arrays, over=over)
        grid = self.correspondence.grid
        self.registry.enrol_new(grid)
        self.accounts.admit(self.registry.arrived(grid))
        allowed = self.accounts.open_to(attempt, again=again)
        turnout = self.turnout(attempt.round, allowed, at)
        if self.user_level is None:
            chosen = self.chosen(attempt.round, arrays, config, turnout.client_ids)
        else:
            chosen = self._joined(attempt, arrays, config, allowed, self.user_level)
        clients = {node_id: self.registry[node_id] for node_id in chosen}
        grants = self.accounts.grant(attempt, clients, again=again)
        numbers = self._numbers | self.control.record
        messages = [_with_grant(chosen[node_id], grant, numbers) for node_id, grant in grants.items()]
        return OpenRound(
            attempt,
            arrays,
            eligible=len(allowed),
            messages=messages,
            grants=grants,
            clients=clients,
            asked_before=frozenset(grants if again else ()),
            began=turnout.began,
            passed_over=not messages and self.could_ask(allowed, turnout),
            sampled=self.user_level is not None,
        )

    def reached(self, opened: OpenRound) -> list[Message]:
        """The messages to clients that will answer: to a simulated one that drops out none needs to go."""
        steps = self._steps(opened)
        begins = self.participation.begins(opened.attempt.round, steps, opened.began)
        return [m for m in opened.messages if opened.grants[m.metadata.dst_node_id].client_id in begins]

    @spanned("asking clients")
    def send(self, opened: OpenRound) -> Answers:
        """Ask the clients, and wait for their answers; with what is late from rounds before."""
        number, asked = opened.attempt.round, len(opened.messages)
        self.tell(Phase(Stage.TRAINING, number, asked))
        answers = self.correspondence.ask(self.reached(opened), self.timeout)
        self.tell(Phase(Stage.AVERAGING, number, asked))
        reach("server.answered")
        return replace(answers, late=self.correspondence.late())

    @spanned("settling the round")
    def settle(self, opened: OpenRound, answers: Answers) -> RoundOutcome:
        """Match receipts with grants, leave out what came too late, and commit what was spent."""
        for asked, reply in answers.late:
            self.accounts.settle_late(asked, reply, self.registry[asked.metadata.dst_node_id].public_key)
        outcome, number, steps = sort_replies(opened, answers), opened.attempt.round, self._steps(opened)
        outcome = outcome.closed_by(self.participation.closes(number, steps, opened.began, outcome.updates))
        self.accounts.settle(outcome)
        return outcome

    def evaluated(self, outcome: RoundOutcome) -> dict[str, NoisySums]:
        """What the clients' local evaluations released, by client_id: in an order that is the same in every run."""
        scores, released = scores_of(self.plan.task) if self.plan.config.local_evaluation else {}, {}
        for client_id, verdict in sorted(outcome.verdicts.items()):
            receipt = verdict.receipt
            if receipt is None or not receipt.noisy_sums or verdict.failure == TOO_LATE:
                continue
            if len(receipt.noisy_sums) == 1 + len(scores):
                released[client_id] = NoisySums(receipt.event, receipt.noisy_sums)
            else:
                log.warning("Client %s evaluates other scores than this server's task; update one of them.", client_id)
        return released

    @spanned("averaging")
    def average(self, outcome: RoundOutcome) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy average the updates, each with its client's public weight, in a fixed order.

        With user-level noise it is given their noisy average alone, in which all count alike.

        Raises:
            RoundFailedError: the average is not finite.
        """
        opened, key = outcome.opened, getattr(self.strategy, "weighted_by_key", "num-examples")
        if self.user_level and opened.sampled:
            noisy = self.user_level.average(opened.attempt, opened.arrays, outcome.updates)
            content = RecordDict({ARRAYS: noisy, "metrics": MetricRecord({key: 1.0})})
            return self._aggregated(opened, [Message(content, _NOBODY, MessageType.TRAIN)])
        if not outcome.updates:
            return None, None
        weights = {c.client_id: self.accounts.weight(c) for c in opened.clients.values()}
        for client_id, reply in outcome.updates.items():
            weight = MetricRecord({key: weights[client_id]})
            reply.content = RecordDict({ARRAYS: reply.content[ARRAYS], "metrics": weight})
        self._advance_control(opened, {c: (weights[c], r.content[ARRAYS]) for c, r in outcome.updates.items()})
        return self._aggregated(opened, list(outcome.updates.values()))

    def advance_control(self, opened: OpenRound, mean: Tensor, weights: Mapping[str, float]) -> None:
        """Let the algorithm's server half take in a round.

        Args:
            opened: the round.
            mean: the average of the updates, shape [d].
            weights: of the clients in it, by client_id.
        """
        number, config = opened.attempt.round, self.plan.config
        half = config.algorithm_in(number).server
        if half is not None:
            start, rate = flat(opened.arrays, self.names), config.learning_rate_in(number)
            self.control.advance(half, start, mean, weights, config.local_steps, rate)

    def _advance_control(self, opened: OpenRound, updates: Mapping[str, tuple[float, Any]]) -> None:
        """The same of messages: each client's weight and arrays."""
        if self.plan.config.algorithm_in(opened.attempt.round).server is not None:
            weights = {client_id: weight for client_id, (weight, _) in updates.items()}
            total = sum(weight * flat(arrays, self.names) for weight, arrays in updates.values())
            self.advance_control(opened, cast(Tensor, total) / sum(weights.values()), weights)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the trained parameters, in the order of flat vectors."""
        return tuple(trainable_parameters(self.plan.task.model()))

    def _aggregated(self, opened: OpenRound, replies: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of replies, each with its weight."""
        aggregated, metrics = self.strategy.aggregate_train(opened.attempt.round, replies)
        reach("server.averaged")
        return in_its_own_types(aggregated, opened.arrays) if aggregated else None, metrics

    def turnout(self, number: int, allowed: AbstractSet[str], at: float) -> Turnout:
        """Whom the wrapped strategy may choose from: all that are allowed, but for who is away or was not drawn."""
        if not self.participation.selective:
            return Turnout(allowed, at)
        return self.participation.turnout(number, self._online(allowed), at)

    def could_ask(self, allowed: AbstractSet[str], turnout: Turnout) -> bool:
        """Whether the draw alone keeps a round from having a client, or who is there: the next may have some."""
        return self.participation.selective and isfinite(turnout.began) and bool(self._online(allowed))

    def _online(self, allowed: AbstractSet[str]) -> set[str]:
        """Those that are connected."""
        return {client_id for client_id in self._everybody() if client_id in allowed}

    def _everybody(self) -> set[str]:
        """Clients that are connected now."""
        return {client.client_id for client in self.registry.online(self.correspondence.grid).values()}

    def _steps(self, opened: OpenRound) -> dict[str, int]:
        """How many steps each client was asked for, by client_id."""
        usual = self.plan.config.local_steps  # without privacy
        grants = opened.grants.values()
        return {grant.client_id: grant.steps if isinstance(grant, Grant) else usual for grant in grants}

    @property
    def _numbers(self) -> dict[str, ArrayRecord]:
        """What goes to every client beside the model: public numbers."""
        if self.standardise is None:
            return {}
        each = {"mean": self.standardise.mean.numpy(), "scale": self.standardise.scale.numpy()}
        return {STANDARDISE: ArrayRecord({name: Array(values) for name, values in each.items()})}

    def _joined(
        self,
        attempt: Attempt,
        arrays: ArrayRecord,
        config: ConfigRecord,
        allowed: AbstractSet[str],
        user_level: UserLevelRounds,
    ) -> dict[int, Message]:
        """Messages to allowed clients that join by Poisson sampling, by node id.

        The strategy writes to everybody, and what it wrote to those that did not join goes nowhere.

        Raises:
            ValueError: the strategy chooses some itself, where it must not.
        """
        before = self._everybody()
        messages = self.chosen(attempt.round, arrays, config, before)
        asked = {self.registry[node_id].client_id: node_id for node_id in messages}
        everybody = before & self._everybody()  # a client may come or go meanwhile
        if not asked.keys() >= everybody:
            raise ValueError(
                f"The wrapped strategy asks {len(asked)} of {len(everybody)} clients; with user-level noise clients "
                "join by Poisson sampling, with probability fraction-train of the settings: let its own be 1."
            )
        joined = user_level.joined(asked, attempt)
        return {n: messages[n] for client_id, n in asked.items() if client_id in joined and client_id in allowed}

    @spanned("sampling clients")
    def chosen(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, allowed: AbstractSet[str]
    ) -> dict[int, Message]:
        """The wrapped strategy's messages to allowed clients, by node id; none if it has too few of those to go on."""
        grid = self.correspondence.grid
        among = allowed if isinstance(allowed, Eligible) else Eligible(allowed, ())

        def eligible() -> list[int]:
            return self.registry.eligible(grid, among)

        if not eligible():
            return {}
        complete = len(self.registry.online(grid)) >= self.plan.config.clients
        view = EligibleGrid(grid, eligible, timeout=0.0 if complete else self.plan.config.node_timeout)
        try:
            messages = list(self.strategy.configure_train(number, arrays, config, cast(Grid, view)))
        except TooFewClientsError:
            if allowed >= {client.client_id for client in self.registry.online(grid).values()}:
                raise  # nobody is left out, and still there are too few
            return {}
        asked = [self.registry[message.metadata.dst_node_id].client_id for message in messages]
        if len(set(asked)) < len(asked):
            raise ValueError("The wrapped strategy asks a client twice in a round: a release that nobody would charge.")
        return {message.metadata.dst_node_id: message for message in messages}


@Grid.register
class EligibleGrid:
    """A grid as a wrapped strategy may see it: hides nodes that must not be asked, and never waits for ever.

    Flower's strategies sample with `sample_nodes`, which polls `get_node_ids` until enough nodes are connected. When
    some have exhausted their budgets that may never be. All else is the real grid's.
    `eligible` tells at every look which nodes may be asked; a strategy that still looks after `timeout` seconds is
    stopped.
    """

    def __init__(self, grid: Grid, eligible: Callable[[], list[int]], timeout: float) -> None:
        self._grid = grid
        self._eligible = eligible
        self._timeout = max(timeout, _BETWEEN_LOOKS)
        self._deadline: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        """Nodes that are connected and may be asked."""
        node_ids = self._eligible()
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._timeout
        elif now >= self._deadline:
            raise TooFewClientsError(
                f"The strategy wants more clients than the {len(node_ids)} that are connected and have budget left. "
                "Lower its min_train_nodes and min_available_nodes, or give clients a larger budget."
            )
        return node_ids

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Nodes that are connected and may be asked."""
        eligible = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in eligible]


@spanned("writing a message")
def _with_grant(message: Message, grant: Grant | Assignment, numbers: Mapping[str, ArrayRecord]) -> Message:
    """The wrapped strategy's message to one client, with its grant, and numbers that are public.

    Raises:
        ValueError: the strategy sends something else than one model.
    """
    models = list(message.content.array_records.values())
    if len(models) != 1:
        raise ValueError(
            f"The wrapped strategy sends {len(models)} array records to a client; wrap one that sends one."
        )
    settings = next(iter(message.content.config_records.values()), ConfigRecord())
    content = RecordDict({ARRAYS: models[0], "config": settings, grant.name: grant.to_record(), **numbers})
    return with_content(message, content)


def in_its_own_types(aggregated: ArrayRecord, model: ArrayRecord) -> ArrayRecord:
    """The average in the model's own types: some strategies compute in float64 and leave it so.

    Raises:
        RoundFailedError: it is not finite. Every further round on such a model would spend privacy for nothing.
    """
    with np.errstate(over="ignore"):  # an overflow is found below
        values = {name: aggregated[name].numpy().astype(old.dtype) for name, old in model.items()}
    if not all(np.isfinite(value).all() for value in values.values()):
        raise RoundFailedError(
            "The average of the clients' updates is not finite. The run stops with the model of the round before: "
            "lower learning-rate, or look for a client that sends huge values."
        )
    return ArrayRecord({name: Array(value) for name, value in values.items()})
