"""Ways to ask the clients of a run: by Flower's messages, or all together as a simulated population.

`ByMessage` is for deployed clients, and for simulated ones that do not train as one population. With `Together` no
message is sent, and there is one sum instead of an update for each client: the wrapped strategy samples clients as
always, their updates are summed where they are computed, and the strategy averages one update that stands for all. So a
round's memory does not grow with its cohort. This is equivalent only for a strategy that uses nothing but the average
of the updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import Books
from fedprivacy.flower.server.checkpoint import ServerControl, flat, shaped_as
from fedprivacy.flower.server.nodes import ClientRegistry, Correspondence, Replies, with_content
from fedprivacy.flower.server.one_round import (
    Instruction,
    OpenRound,
    RoundOutcome,
    in_time,
    outcome_of,
    settings_in,
    sort_replies,
    usable,
)
from fedprivacy.flower.simulated.populations import CohortUpdate, Population
from fedprivacy.flower.wire.messages import SpendingMessage
from fedprivacy.gradients import trainable_parameters
from fedprivacy.participation import Participation
from fedprivacy.questions.standardise import STANDARDISE, Standardise
from fedprivacy.runs.plans.plan import TrainingPlan


@dataclass(frozen=True)
class ByMessage:
    """A `Transport` over a Flower grid."""

    plan: TrainingPlan
    registry: ClientRegistry  # knows who is behind a node
    accounts: Books
    correspondence: Correspondence
    timeout: float  # seconds to wait for answers
    participation: Participation  # who answers, and in time
    control: ServerControl  # what the algorithm's server half sends
    standardise: Standardise | None = None  # what the clients' inputs become first

    def admit(self, arrays: ArrayRecord) -> None:
        """Enrol nodes that connected since the last round, and open accounts for them."""
        self.registry.enrol_new(self.correspondence.grid)
        self.accounts.admit(self.registry.new_arrivals(self.correspondence.grid))

    def open(self, opened: OpenRound, written: Mapping[int, Message], *, again: bool) -> OpenRound:
        """Reserve the spending of each client, and put a grant into the wrapped strategy's message to it."""
        grants = self.accounts.grant(opened.attempt, opened.clients, again=again)
        numbers = self._numbers | self.control.record
        messages = [_with_grant(written[node_id], grant, numbers) for node_id, grant in grants.items()]
        return replace(opened, grants=grants, messages=messages, asked_before=frozenset(grants if again else ()))

    def messages_to_send(self, opened: OpenRound) -> list[Message]:
        """The messages to clients that will answer: a simulated client that drops out needs none."""
        begins = self.participation.begins(opened.attempt.round, self._steps(opened), opened.began)
        return [m for m in opened.messages if opened.grants[m.metadata.dst_node_id].client_id in begins]

    def ask(self, opened: OpenRound) -> Replies:
        """Send the messages and wait for the replies; late replies to earlier rounds are returned too."""
        replies = self.correspondence.ask(self.messages_to_send(opened), self.timeout)
        return replace(replies, late=self.correspondence.late())

    def receive(self, opened: OpenRound, replies: Replies) -> RoundOutcome:
        """Match receipts with grants, and leave out the updates that came too late."""
        for asked, reply in replies.late:
            self.accounts.settle_late(asked, reply, self.registry[asked.metadata.dst_node_id].public_key)
        verdicts, number = sort_replies(opened, replies), opened.attempt.round
        closed = self.participation.closes(number, self._steps(opened), opened.began, usable(verdicts))
        scores = self.plan.task.scores() if self.plan.config.local_evaluation else {}
        return outcome_of(opened, in_time(verdicts, closed), closed.ended, scores)

    def as_messages(self, outcome: RoundOutcome, weighted_by: str) -> list[Message]:
        """Each update with its client's public weight, in an order that is the same in every run."""
        weights = self._weights(outcome)
        for client_id, reply in outcome.updates.items():
            weight = MetricRecord({weighted_by: weights[client_id]})
            reply.content = RecordDict({ARRAYS: reply.content[ARRAYS], "metrics": weight})
        return list(outcome.updates.values())

    def mean(self, outcome: RoundOutcome) -> tuple[Tensor, dict[str, float]]:
        """The weighted average of the updates, flat, and their weights by client_id."""
        weights = self._weights(outcome)
        total = sum(weights[c] * flat(reply.content[ARRAYS], self.names) for c, reply in outcome.updates.items())
        return cast(Tensor, total) / sum(weights.values()), weights

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of flat vectors."""
        return tuple(trainable_parameters(self.plan.task.model()))

    def _weights(self, outcome: RoundOutcome) -> dict[str, float]:
        """The public weight of each update, by client_id, in the order of the updates."""
        clients = {client.client_id: client for client in outcome.opened.clients.values()}
        return {client_id: self.accounts.weight(clients[client_id]) for client_id in outcome.updates}

    def _steps(self, opened: OpenRound) -> dict[str, int]:
        """The number of local steps asked of each client, by client_id."""
        usual = self.plan.config.local_steps  # without privacy
        grants = opened.grants.values()
        return {grant.client_id: grant.steps if isinstance(grant, SpendingMessage) else usual for grant in grants}

    @property
    def _numbers(self) -> dict[str, ArrayRecord]:
        """Public numbers that every client gets beside the model."""
        if self.standardise is None:
            return {}
        each = {"mean": self.standardise.mean.numpy(), "scale": self.standardise.scale.numpy()}
        return {STANDARDISE: ArrayRecord({name: Array(values) for name, values in each.items()})}


def _with_grant(message: Message, grant: Instruction, numbers: Mapping[str, ArrayRecord]) -> Message:
    """The wrapped strategy's message to one client, with its grant and public numbers.

    Raises:
        ValueError: the strategy does not send exactly one model.
    """
    models = list(message.content.array_records.values())
    if len(models) != 1:
        raise ValueError(
            f"The wrapped strategy sends {len(models)} array records to a client; wrap one that sends one."
        )
    content = RecordDict({ARRAYS: models[0], "config": settings_in(message), grant.name: grant.to_record(), **numbers})
    return with_content(message, content)


def population_of(grid: Grid) -> Population | None:
    """The population behind a grid, whose clients may train together; None: they get messages."""
    return getattr(grid, "population", None)


@dataclass(frozen=True)
class Together:
    """A `Transport` to a population, whose clients may be in this process, in worker processes or on a cluster."""

    registry: ClientRegistry
    accounts: Books
    population: Population
    control: ServerControl  # what the algorithm's server half sends

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of flat vectors."""
        return self.population.names

    def admit(self, arrays: ArrayRecord) -> None:
        """Check the global model; no client comes later. Raises the errors of `Population.check`."""
        self.population.check(arrays)

    def open(self, opened: OpenRound, written: Mapping[int, Message], *, again: bool) -> OpenRound:
        """Reserve the spending of each client, and write the order for each one that trains.

        The orders are sorted by client_id, whatever the strategy's order: updates are added in this order.
        """
        granted = self.accounts.reserve(opened.attempt, opened.clients.values(), again=again)
        clients = {node_id: client for node_id, client in opened.clients.items() if client.client_id in granted}
        orders = [
            self.accounts.order(client, self.registry.part(node_id), granted[client.client_id])
            for node_id, client in clients.items()
        ]
        return replace(opened, clients=clients, orders=sorted(orders, key=lambda order: order.client_id))

    def ask(self, opened: OpenRound) -> CohortUpdate:
        """Let the cohort train."""
        pull = float(opened.settings.get("proximal-mu", 0.0))  # type: ignore[arg-type]
        earlier = self.accounts.earlier_runs
        return self.population.train(opened.orders, opened.arrays, opened.attempt, earlier, pull, self.control.value)

    def receive(self, opened: OpenRound, answers: CohortUpdate) -> RoundOutcome:
        """Confirm the charges of clients that trained; a failed client may have spent, so its charge stays open."""
        norms = dict(sorted(answers.clipping_norms.items()))
        return RoundOutcome(
            opened,
            answers,
            participants=tuple(sorted(answers.weights)),
            failures=dict(sorted(answers.failures.items())),
            confirmed=dict.fromkeys(norms),
            clipping_norms=norms,
            ended=opened.began,
        )

    def as_messages(self, outcome: RoundOutcome, weighted_by: str) -> list[Message]:
        """The average as a single update, with the weight of all."""
        update, opened = outcome.updates, outcome.opened
        assert opened.template is not None
        mean, _ = self.mean(outcome)
        average = shaped_as(opened.arrays, mean.numpy(), update.names)
        weight = MetricRecord({weighted_by: update.weight})
        return [Message(RecordDict({ARRAYS: average, "metrics": weight}), reply_to=opened.template)]

    def mean(self, outcome: RoundOutcome) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted average of the updates, flat, and their weights by client_id."""
        return outcome.updates.mean().cpu(), outcome.updates.weights
