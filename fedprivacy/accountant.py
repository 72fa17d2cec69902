"""The central accountant: grants steps before they are taken, composes every client's privacy loss, round by round.

Formal guarantee: for every client whose budget is enforced, everything that the server receives about the client's
shard, over all rounds and runs on one ledger, is (epsilon, delta)-differentially private under the filter's conditions
(`fedprivacy.accounting.filters`). Steps are charged before they are granted, and a charge without a receipt stands.
Sampling of clients amplifies nothing: the server sees who took part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fedprivacy.accounting import FILTERS, pld
from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import Event
from fedprivacy.ledger import Account, Allowance, ChargeState, Ledger


@dataclass(frozen=True, slots=True)
class ClientSpent:
    """One client's privacy loss so far, seen by the server, over all runs on its shard.

    Attributes:
        client_id: the client.
        epsilon: composed privacy loss at `delta`, by PLD.
        delta: delta of the client's budget.
        budget_epsilon: the budget; infinite if the run only measures.
        rounds: rounds charged.
        steps: local steps charged.
        steps_left: steps of the run's event that the budget still allows.
    """

    client_id: str
    epsilon: float
    delta: float
    budget_epsilon: float
    rounds: int
    steps: int
    steps_left: int

    @property
    def exhausted(self) -> bool:
        """Whether not one more step is allowed."""
        return self.steps_left == 0


class CentralAccountant:
    """Grants, commits and reports for the clients of one run.

    Args:
        ledger: where charges are kept, over all runs.
        run_id: the run; unique in the ledger.
        event: what one local step of this run costs, the same for every client.
        budget: each client's budget over all runs.
        filter: name of the filter that enforces the budget.
    """

    def __init__(self, ledger: Ledger, run_id: str, event: Event, budget: PrivacyBudget, filter: str) -> None:
        self.event = event
        self.budget = budget
        self._ledger = ledger
        self._run_id = run_id
        self._allowance = Allowance(budget, filter)
        self._filter = FILTERS[filter](budget)
        self._datasets: dict[str, str] = {}

    def enrol(self, datasets: Mapping[str, str]) -> None:
        """Open the accounts of clients.

        Args:
            datasets: client_id -> dataset_id, what the client's budget belongs to.

        Raises:
            LedgerError: a dataset already has another budget.
            MechanismChanged: a dataset was charged with another mechanism than the filter can compose with.
        """
        self._ledger.open_budgets(dict.fromkeys(datasets.values(), self._allowance))
        self._datasets |= datasets
        for account in self._accounts(datasets).values():
            self._filter.quota(account.history, self.event)

    def grant(self, round: int, wanted: Mapping[str, int]) -> dict[str, int]:
        """Reserve steps for a round, before any message leaves.

        Args:
            round: the round.
            wanted: local steps by client_id.

        Returns:
            Granted steps, at least 1, by client_id. Exhausted clients are missing.
        """
        by_dataset = {self._datasets[client_id]: steps for client_id, steps in wanted.items()}
        granted = self._ledger.reserve(
            self._run_id, round, self.event, by_dataset, lambda _, history: self._filter.quota(history, self.event)
        )
        return {c: granted[self._datasets[c]] for c in wanted if self._datasets[c] in granted}

    def commit(self, round: int, client_ids: Collection[str]) -> None:
        """Confirm the charges of clients whose receipts matched their grants."""
        self._settle(round, client_ids, ChargeState.COMMITTED)

    def void(self, round: int, client_ids: Collection[str]) -> None:
        """Return the charges of clients that refused before they touched a record."""
        self._settle(round, client_ids, ChargeState.VOID)

    def spent(self) -> dict[str, ClientSpent]:
        """Every enrolled client's privacy loss, by client_id."""
        return {client_id: self._spent(client_id, a) for client_id, a in self._accounts(self._datasets).items()}

    def _settle(self, round: int, client_ids: Collection[str], state: ChargeState) -> None:
        self._ledger.settle(self._run_id, round, [self._datasets[c] for c in client_ids], state)

    def _accounts(self, client_ids: Collection[str]) -> dict[str, Account]:
        accounts = self._ledger.accounts([self._datasets[c] for c in client_ids])
        return {c: accounts.get(self._datasets[c], Account({}, 0)) for c in sorted(client_ids)}

    def _spent(self, client_id: str, account: Account) -> ClientSpent:
        return ClientSpent(
            client_id=client_id,
            epsilon=_epsilon(frozenset(account.history.items()), self.budget.delta),
            delta=self.budget.delta,
            budget_epsilon=self.budget.epsilon,
            rounds=account.rounds,
            steps=sum(account.history.values()),
            steps_left=self._filter.quota(account.history, self.event),
        )


@lru_cache(maxsize=4096)
def _epsilon(history: frozenset[tuple[Event, int]], delta: float) -> float:
    """Clients with equal histories have equal losses: compose each history once."""
    return pld.epsilon(dict(history), delta)
