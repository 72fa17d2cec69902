"""The books of a run without privacy: who trained how often. Nothing is charged, and no epsilon bounds anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flwr.app import Message

from fedprivacy.accounting import UNLIMITED
from fedprivacy.flower.server.checkpoint import Checkpoint
from fedprivacy.flower.server.one_round import RoundOutcome
from fedprivacy.flower.server.registry import Eligible, EnrolledClient
from fedprivacy.flower.simulated.null_mechanism import NullMechanism
from fedprivacy.flower.simulated.populations import Order
from fedprivacy.flower.simulated.without_privacy import Assignment
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import History
from fedprivacy.values.spent import ClientSpent, PopulationSpent


class NullBooks:
    """Takes the place of `RunAccounts` in a simulation without privacy; takes and gives what that does.

    Raises:
        ConfigError: a client is a deployed one. It has been asked for nothing but its name.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        run_id: str,
        clients: Iterable[EnrolledClient],
        *,
        resume: Checkpoint | None = None,
        folder: Path | None = None,
    ) -> None:
        self.left_out: set[str] = set()
        self.clipping_norms: dict[str, float] = {}
        self.earlier_runs = 0
        self.unreconciled: tuple[str, ...] = ()
        self.ledger_url = plan.config.ledger_url(deployed=False)  # where pages may look for the run
        self._plan, self._run_id = plan, run_id
        self._sampling_rates: dict[str, float] = {}
        self._unread: set[str] = set()  # clients that have changed since `spent` was last asked
        self._spent = PopulationSpent({})
        self._rounds = Counter(_trained_before(folder, resume.round) if folder and resume else {})
        self.admit(clients)

    @staticmethod
    def check(config: RunConfig) -> None:
        """Refuse a private run, by a `ConfigError`: these accounts charge nothing."""
        if config.privacy:
            raise ConfigError(["privacy is on; a private run needs RunAccounts, which charge for it."])

    def admit(self, clients: Iterable[EnrolledClient]) -> list[ValueError]:
        """Take clients in; a `ConfigError` for a deployed one."""
        for client in clients:
            if client.public_key:
                raise ConfigError([f"privacy is off, and client {client.client_id} is deployed; leave privacy open."])
            self._unread.add(client.client_id)
            self._sampling_rates[client.client_id] = self._plan.sampling_rate(client.shard_size, client.client_id)
        return []

    def check_left(self) -> None:
        """Do nothing: no client has a budget that could be spent."""

    def spent(self) -> PopulationSpent:
        """Every client's part in the run, by client_id; its epsilon is infinite: there is no bound."""
        changed, self._unread = self._unread, set()
        self._spent = self._spent.updated({client_id: self._part(client_id) for client_id in changed})
        return self._spent

    def most_charged(self) -> History:
        """Nothing: no client is charged."""
        return {}

    def _part(self, client_id: str) -> ClientSpent:
        config = self._plan.config
        return ClientSpent(
            client_id=client_id,
            epsilon=math.inf,
            delta=config.delta,
            budget_epsilon=math.inf,
            rounds=self._rounds[client_id],
            steps=self._rounds[client_id] * config.local_steps,
            steps_left=UNLIMITED,
            sampling_rate=self._sampling_rates[client_id],
            noise_multiplier=0.0,
        )

    def weight(self, client: EnrolledClient) -> float:
        """The weight of a client's update in the average: no update has noise."""
        return self._plan.weight(client.shard_size, client.answered)

    def attempts(self, server_round: int) -> Iterator[tuple[Attempt, bool]]:
        """Yield one attempt: a lost update costs no privacy, and the round is not repeated."""
        yield Attempt(self._run_id, server_round), False

    def open_to(self, attempt: Attempt, *, again: bool) -> Eligible:
        """All clients may be asked."""
        return Eligible(self.spent().places, ())

    def grant(self, attempt: Attempt, clients: Mapping[int, EnrolledClient], *, again: bool) -> dict[int, Assignment]:
        return {
            node_id: Assignment(client.client_id, attempt.round, self._sampling_rates[client.client_id])
            for node_id, client in clients.items()
        }

    def reserve(self, attempt: Attempt, clients: Iterable[EnrolledClient], *, again: bool) -> dict[str, int]:
        """Return the steps of a round, by client_id: the same for all clients."""
        return {client.client_id: self._plan.config.local_steps for client in clients}

    def order(self, client: EnrolledClient, part: int, steps: int) -> Order:
        """The training order of a simulated client, with the part of the split that it holds."""
        rate = self._sampling_rates[client.client_id]
        return Order(
            client_id=client.client_id,
            part=part,
            mechanism=NullMechanism(rate),
            expected_batch_size=rate * self._plan.shard_size(client.shard_size),
            steps=steps,
            weight=self.weight(client),
        )

    def settle(self, outcome: RoundOutcome) -> None:
        """Count the clients that trained and sent an update."""
        self._rounds.update(outcome.participants)
        self._unread.update(outcome.participants)

    def settle_late(self, asked: Message, reply: Message, key: bytes) -> None:
        """Do nothing: no charge was made, so none is to be confirmed."""

    def sign(self) -> None:
        """Do nothing: there is no ledger to sign."""

    def close(self) -> None:
        """Do nothing: there is no ledger to close."""


def _trained_before(folder: Path, last: int) -> dict[str, int]:
    """Count the rounds from 1 to `last` in which each client trained, by client_id."""
    return dict(Counter(client for result in read_history(folder).rounds[:last] for client in result.participants))
