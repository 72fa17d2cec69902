"""A simulated population that trains together: no message, and one sum instead of an update for each client.

The wrapped strategy samples clients as always. Their updates are summed where they are computed, and the strategy
averages one update that stands for all: so a round's memory does not grow with its cohort. This is equivalent only for
a strategy that uses nothing but the average of the updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import Books
from fedprivacy.flower.server.control import ServerControl
from fedprivacy.flower.server.one_round import OpenRound, RoundOutcome
from fedprivacy.flower.server.registry import ClientRegistry
from fedprivacy.flower.simulated.populations import CohortUpdate, Population


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

    def received(self, opened: OpenRound, answers: CohortUpdate) -> RoundOutcome:
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

    def given(self, outcome: RoundOutcome, weighted_by: str) -> list[Message]:
        """The average as a single update, with the weight of all."""
        update, opened = outcome.updates, outcome.opened
        assert opened.template is not None
        mean, _ = self.mean(outcome)
        average, weight = shaped(mean.numpy(), update.names, opened.arrays), MetricRecord({weighted_by: update.weight})
        return [Message(RecordDict({ARRAYS: average, "metrics": weight}), reply_to=opened.template)]

    def mean(self, outcome: RoundOutcome) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted average of the updates, flat, and their weights by client_id."""
        return outcome.updates.mean().cpu(), outcome.updates.weights


def shaped(flat: np.ndarray, names: Sequence[str], model: Mapping[str, Array]) -> ArrayRecord:
    """A flat vector of the named parameters, in the shapes and types of the model's, which may stand in any order."""
    own = {name: model[name].numpy() for name in names}
    parts = np.split(flat, np.cumsum([values.size for values in own.values()])[:-1])
    shaped = {n: Array(part.reshape(own[n].shape).astype(own[n].dtype)) for n, part in zip(own, parts, strict=True)}
    return ArrayRecord({name: shaped[name] for name in model})
