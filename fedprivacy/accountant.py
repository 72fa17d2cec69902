"""The central accountant: grants steps before they are taken, composes every client's privacy loss, round by round.

Formal guarantee: for every client whose budget is enforced, everything that the server receives about the client's
shard, over all rounds and runs on one ledger, is (epsilon, delta)-differentially private under the filter's conditions
(`fedprivacy.accounting.filters`). Steps are charged before they are granted, and a charge without a receipt stands.
Sampling of clients amplifies nothing: the server sees who took part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fedprivacy.accounting import FILTERS
from fedprivacy.accounting.population import PopulationAccountant
from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.ledger import NOTHING_SPENT, Account, Allowance, ChargeState, Ledger


@dataclass(frozen=True, slots=True)
class ClientSpent:
    """One client's privacy loss so far, seen by the server, over all runs on its shard.

    Attributes:
        client_id: the client.
        epsilon: composed privacy loss at `delta`, by PLD: an odometer's reading, no budget.
        delta: delta of the client's budget.
        budget_epsilon: the budget; infinite if the run only measures.
        rounds: rounds charged.
        steps: local steps charged.
        steps_left: steps of the run that the budget still allows.
        sampling_rate: q of the run's local steps.
    """

    client_id: str
    epsilon: float
    delta: float
    budget_epsilon: float
    rounds: int
    steps: int
    steps_left: int
    sampling_rate: float

    @property
    def exhausted(self) -> bool:
        """Whether not one more step is allowed."""
        return self.steps_left == 0


class CentralAccountant:
    """Grants, commits and reports for the clients of one run.

    Args:
        ledger: where charges are kept, over all runs.
        run_id: the run; unique in the ledger.
        relation: the neighbouring relation of every event.
        budget: each client's budget over all runs.
        filter: name of the filter that enforces the budget.
    """

    def __init__(
        self, ledger: Ledger, run_id: str, relation: NeighbouringRelation, budget: PrivacyBudget, filter: str
    ) -> None:
        self.budget = budget
        self._ledger = ledger
        self._run_id = run_id
        self._allowance = Allowance(budget, filter)
        self._filter = FILTERS[filter](budget)
        self._datasets: dict[str, str] = {}
        self._events: dict[str, PoissonSampledGaussian] = {}
        self._rows: dict[str, int] = {}
        self._population = PopulationAccountant(relation)

    def enrol(self, datasets: Mapping[str, str], events: Mapping[str, PoissonSampledGaussian]) -> None:
        """Open the accounts of clients.

        Args:
            datasets: client_id -> dataset_id, what the client's budget belongs to.
            events: client_id -> what one local step of this run costs the client.

        Raises:
            LedgerError: a dataset already has another budget.
            MechanismChanged: a dataset was charged with another mechanism than the filter can compose with.
        """
        self._ledger.open_budgets(dict.fromkeys(datasets.values(), self._allowance))
        accounts = self._ledger.accounts(list(datasets.values()))
        for client_id, dataset in datasets.items():
            self._filter.quota(accounts.get(dataset, NOTHING_SPENT).history, events[client_id])
        self._datasets |= datasets
        self._events |= events
        rows = self._population.enrol(list(datasets.values()), self.budget.delta).tolist()
        self._rows |= dict(zip(datasets.values(), rows, strict=True))

    def grant(self, round: int, wanted: Mapping[str, int]) -> dict[str, int]:
        """Reserve steps for a round, before any message leaves.

        Args:
            round: the round.
            wanted: local steps by client_id.

        Returns:
            Granted steps, at least 1, by client_id. Exhausted clients are missing.
        """
        steps = {self._datasets[client_id]: wanted_steps for client_id, wanted_steps in wanted.items()}
        events = {self._datasets[client_id]: self._events[client_id] for client_id in wanted}
        granted = self._ledger.reserve(
            self._run_id, round, events, steps, lambda dataset, history: self._filter.quota(history, events[dataset])
        )
        return {c: granted[self._datasets[c]] for c in wanted if self._datasets[c] in granted}

    def commit(self, round: int, client_ids: Collection[str]) -> None:
        """Confirm the charges of clients whose receipts matched their grants."""
        self._settle(round, client_ids, ChargeState.COMMITTED)

    def void(self, round: int, client_ids: Collection[str]) -> None:
        """Return the charges of clients that refused before they touched a record."""
        self._settle(round, client_ids, ChargeState.VOID)

    def spent(self) -> dict[str, ClientSpent]:
        """Every enrolled client's privacy loss, by client_id. Other runs on the same ledger count."""
        accounts = self._ledger.accounts(list(self._datasets.values()))
        epsilons = self._epsilons(accounts)
        return {
            client_id: self._spent(client_id, accounts.get(dataset, NOTHING_SPENT), epsilons[dataset])
            for client_id, dataset in sorted(self._datasets.items())
        }

    def _epsilons(self, accounts: Mapping[str, Account]) -> dict[str, float]:
        """Every enrolled dataset's privacy loss; only those that were charged since the last time are computed."""
        charged = [
            (self._rows[dataset], event, steps)
            for dataset, account in accounts.items()
            for event, steps in account.history.items()
        ]
        mechanisms = self._population.mechanisms([event for _, event, _ in charged])
        steps = np.array([steps for _, _, steps in charged], dtype=np.int64)
        self._population.restate([row for row, _, _ in charged], mechanisms, steps)
        epsilons = self._population.epsilons().tolist()
        return {dataset: epsilons[row] for dataset, row in self._rows.items()}

    def _settle(self, round: int, client_ids: Collection[str], state: ChargeState) -> None:
        self._ledger.settle(self._run_id, round, [self._datasets[c] for c in client_ids], state)

    def _spent(self, client_id: str, account: Account, epsilon: float) -> ClientSpent:
        return ClientSpent(
            client_id=client_id,
            epsilon=epsilon,
            delta=self.budget.delta,
            budget_epsilon=self.budget.epsilon,
            rounds=account.rounds,
            steps=sum(account.history.values()),
            steps_left=self._filter.quota(account.history, self._events[client_id]),
            sampling_rate=self._events[client_id].sampling_rate,
        )
