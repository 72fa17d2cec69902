"""The rounds of a population: what a round of messages does, with a cohort that trains together in this process.

Who is sampled is the wrapped strategy's choice, as always. What its clients would have sent is added up where it is
made, and the strategy averages one update that stands for all: so a round's memory does not grow with its cohort. That
is the same only to a strategy that averages, and does with the average what it likes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedprivacy._support.failpoints import reach
from fedprivacy._support.spans import spanned
from fedprivacy.flower.baseline.accounts import BaselineAccounts
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.server.accounts import RunAccounts
from fedprivacy.flower.server.control import ServerControl
from fedprivacy.flower.server.noisy_average import UserLevelRounds
from fedprivacy.flower.server.registry import EnrolledClient
from fedprivacy.flower.server.replies import OpenRound, RoundOutcome
from fedprivacy.flower.server.rounds import Rounds, in_its_own_types
from fedprivacy.flower.server.underway import Underway
from fedprivacy.flower.simulated.orders import Order
from fedprivacy.flower.simulated.population import CohortUpdate, Population
from fedprivacy.training.evaluation import NoisySums
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.rounds import Phase, Stage

AVERAGING = (flower.FedAvg, flower.FedProx, flower.FedAvgM, flower.FedAdagrad, flower.FedAdam, flower.FedYogi)
"""Strategies to which the average of the updates says all; their subclasses may look at each update."""


def population_of(grid: Grid) -> Population | None:
    """The clients of a grid that are all in this process, and may train together; None: they get messages."""
    return getattr(grid, "population", None)


def averages(strategy: Strategy) -> bool:
    """Whether a strategy is known to need no more than the average."""
    return type(strategy) in AVERAGING


@dataclass(frozen=True)
class OpenCohort(OpenRound):
    """A round of a population, when it may be trained.

    Attributes:
        orders: one for each client that was charged.
        template: the wrapped strategy's message to one of them; None: it chose nobody.
        apart: whether each one's update is kept by itself.
    """

    orders: Sequence[Order] = ()
    template: Message | None = None
    apart: bool = False

    @property
    def asked(self) -> int:
        """How many clients train."""
        return len(self.orders)

    @property
    def settings(self) -> ConfigRecord:
        """What the wrapped strategy sends besides the model."""
        records = self.template.content.config_records.values() if self.template else ()
        return next(iter(records), ConfigRecord())


@dataclass(frozen=True)
class CohortOutcome(RoundOutcome):
    """What became of a cohort."""

    update: CohortUpdate = field(default_factory=CohortUpdate)

    @property
    def participants(self) -> tuple[str, ...]:
        """Clients whose updates were added up, sorted."""
        return tuple(sorted(self.update.weights))

    @property
    def failures(self) -> dict[str, str]:
        """Clients without a usable update, with a short constant reason, sorted."""
        return dict(sorted(self.update.failures.items()))


@dataclass(frozen=True)
class CohortRounds:
    """Rounds without messages; see `fedprivacy.flower.server.rounds.Rounds`, whose steps these are."""

    rounds: Rounds
    accounts: RunAccounts | BaselineAccounts
    population: Population
    user_level: UserLevelRounds | None = None
    underway: Underway | None = None

    @property
    def control(self) -> ServerControl:
        """What the algorithm's server half sends."""
        return self.rounds.control

    @spanned("opening the round")
    def open(
        self, attempt: Attempt, arrays: ArrayRecord, config: ConfigRecord, *, again: bool, at: float = 0.0
    ) -> OpenCohort:
        """Let the wrapped strategy choose, and reserve what each client may spend; see `Rounds.open`."""
        self.population.check(arrays)
        registry = self.rounds.registry
        eligible = self.accounts.open_to(attempt, again=again)
        turnout = self.rounds.turnout(attempt.round, eligible, at)
        chosen = self.rounds.chosen(attempt.round, arrays, config, turnout.client_ids)
        clients = {node_id: registry[node_id] for node_id in chosen}
        steps = self.accounts.reserve(attempt, clients.values(), again=again)
        orders = self.orders(clients, steps)
        template = next(iter(chosen.values()), None)
        return OpenCohort(
            attempt,
            arrays,
            eligible=len(eligible),
            clients=clients,
            began=turnout.began,
            passed_over=not orders and self.rounds.could_ask(eligible, turnout),
            orders=orders,
            template=template,
        )

    def orders(self, clients: Mapping[int, EnrolledClient], steps: Mapping[str, int]) -> list[Order]:
        """What clients, by node id, train with that were granted steps, by client_id.

        Whatever the strategy's order is, theirs is one: sums are added in it.
        """
        orders = [
            self.accounts.order(client, self.rounds.registry.part(node_id), steps[client.client_id])
            for node_id, client in clients.items()
            if client.client_id in steps
        ]
        return sorted(orders, key=lambda order: order.client_id)

    @spanned("asking clients")
    def send(self, opened: OpenCohort) -> CohortUpdate:
        """Let the cohort train."""
        number = opened.attempt.round
        self.rounds.tell(Phase(Stage.TRAINING, number, opened.asked))
        pull = float(opened.settings.get("proximal-mu", 0.0))  # type: ignore[arg-type]
        update = self.population.train(
            opened.orders,
            opened.arrays,
            opened.attempt,
            self.accounts.earlier_runs,
            pull,
            opened.apart,
            self.rounds.control.value,
        )
        self.rounds.tell(Phase(Stage.AVERAGING, number, opened.asked))
        reach("server.answered")
        return update

    @spanned("settling the round")
    def settle(self, opened: OpenCohort, update: CohortUpdate) -> CohortOutcome:
        """Commit what was spent: a client that failed may have spent it, and its charge stays open."""
        self.accounts.settle_cohort(opened.attempt, update)
        return CohortOutcome(opened, update=update, ended=opened.began)

    def evaluated(self, outcome: CohortOutcome) -> dict[str, NoisySums]:
        """Nobody evaluates; a run with local evaluation sends messages."""
        return {}

    @spanned("averaging")
    def average(self, outcome: CohortOutcome) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy take the average for the one update that there is.

        Raises:
            RoundFailedError: what it makes of that is not finite.
        """
        if not outcome.participants:  # as before the first round
            return None, None
        update, opened = outcome.update, outcome.opened
        assert isinstance(opened, OpenCohort)
        mean = update.mean().cpu()
        self.rounds.advance_control(opened, mean, update.weights)
        return self.aggregated(opened, shaped(mean.numpy(), update.names, opened.arrays), update.weight)

    def aggregated(
        self, opened: OpenCohort, mean: ArrayRecord, weight: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of one update that stands for all, with the weight of all.

        Raises:
            RoundFailedError: it is not finite.
        """
        strategy = self.rounds.strategy
        assert opened.template is not None
        metrics_of_all = MetricRecord({getattr(strategy, "weighted_by_key", "num-examples"): weight})
        reply = Message(RecordDict({ARRAYS: mean, "metrics": metrics_of_all}), reply_to=opened.template)
        aggregated, metrics = strategy.aggregate_train(opened.attempt.round, [reply])
        reach("server.averaged")
        return in_its_own_types(aggregated, opened.arrays) if aggregated else None, metrics


def shaped(flat: np.ndarray, names: Sequence[str], model: Mapping[str, Array]) -> ArrayRecord:
    """A flat vector of the named parameters, in the shapes and types of the model's, which may stand in any order."""
    own = {name: model[name].numpy() for name in names}
    parts = np.split(flat, np.cumsum([values.size for values in own.values()])[:-1])
    shaped = {n: Array(part.reshape(own[n].shape).astype(own[n].dtype)) for n, part in zip(own, parts, strict=True)}
    return ArrayRecord({name: shaped[name] for name in model})
