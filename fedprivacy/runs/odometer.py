"""Reads off the ledger what every client of a run has spent, and again only what the ledger has written since.

A reading costs what was charged between two readings, by whatever run, and not what there are clients. It says what
one that read every account would say: `fedprivacy.ledger.changes` has the reason. It is a reading and no guarantee:
grants are decided by `Ledger.reserve`, on what the ledger holds then.
"""

from __future__ import annotations

import datetime
import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedprivacy.accounting.population import PopulationAccountant
from fedprivacy.ledger import NOTHING_SPENT, Account, Allowance, Ledger
from fedprivacy.ledger.changes import ChangedAccounts
from fedprivacy.ledger.journal import Head
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.population import PopulationSpent
from fedprivacy.values.spent import ClientSpent

StepsLeft = Callable[[str, Allowance, History], int]
"""(dataset_id, its budget, its history) -> steps of the run that budget and spend still allow."""


class Enrolled(NamedTuple):
    """A client of the run: whose budget it spends, at which delta its loss is read, and what one local step costs."""

    client_id: str
    dataset_id: str
    delta: float
    event: PoissonSampledGaussian


class Odometer:
    """Every enrolled client's privacy loss, over all runs on one ledger.

    Args:
        ledger: where charges are kept.
        relation: the neighbouring relation of every event.
        left: how many steps a budget still allows.

    Attributes:
        last: everybody's privacy loss when it was last read, by client_id.
    """

    def __init__(self, ledger: Ledger, relation: NeighbouringRelation, left: StepsLeft) -> None:
        self._ledger, self._left = ledger, left
        self._population = PopulationAccountant(relation)
        self._clients: dict[str, Enrolled] = {}  # by dataset_id
        self._rows: dict[str, int] = {}
        self._head = Head()
        self._unread: set[str] = set()
        self._expiring: list[tuple[datetime.datetime, str]] = []  # a heap: when a budget ends, and on which dataset
        self.last = PopulationSpent({})

    def enrol(self, clients: list[Enrolled]) -> None:
        """Read these clients, too, from now on.

        Raises:
            ValueError: one was enrolled before with another delta.
        """
        datasets = [client.dataset_id for client in clients]
        rows = self._population.enrol(datasets, np.array([client.delta for client in clients])).tolist()
        self._rows |= dict(zip(datasets, rows, strict=True))
        self._clients |= dict(zip(datasets, clients, strict=True))
        self._unread.update(datasets)

    def read(self) -> PopulationSpent:
        """Everybody's privacy loss so far, by client_id."""
        self._unread |= self._expired()
        reading = self._ledger.read_changed(self._clients.keys(), self._head, self._unread)
        self.last = self.last.updated(self._spent_by(reading))
        self._head, self._unread = reading.head, set()
        return self.last

    def history(self, dataset_id: str) -> History:
        """Everything that was charged to a dataset, when it was last read."""
        return self._population.history(self._rows[dataset_id])

    def _spent_by(self, reading: ChangedAccounts) -> dict[str, ClientSpent]:
        """The privacy loss of the clients that were read, by client_id."""
        changed = {}
        for dataset, epsilon in self._epsilons(reading).items():
            client, allowance = self._clients[dataset], reading.allowances[dataset]
            account = reading.accounts.get(dataset, NOTHING_SPENT)
            changed[client.client_id] = ClientSpent(
                client_id=client.client_id,
                epsilon=epsilon,
                delta=client.delta,
                budget_epsilon=allowance.budget.epsilon,
                rounds=account.rounds,
                steps=sum(account.history.values()),
                steps_left=self._steps_left(dataset, allowance, account),
                sampling_rate=client.event.sampling_rate,
                noise_multiplier=client.event.noise_multiplier,
            )
        return changed

    def _steps_left(self, dataset: str, allowance: Allowance, account: Account) -> int:
        if allowance.expired:
            return 0
        if allowance.expires is not None:  # nobody will write when that moment comes
            heapq.heappush(self._expiring, (allowance.expires, dataset))
        return self._left(dataset, allowance, account.history)

    def _expired(self) -> set[str]:
        """Datasets whose budgets have ended since the last reading."""
        expired, now = set(), datetime.datetime.now(datetime.UTC)
        while self._expiring and self._expiring[0][0] <= now:
            expired.add(heapq.heappop(self._expiring)[1])
        return expired

    def _epsilons(self, reading: ChangedAccounts) -> Mapping[str, float]:
        """The privacy loss of every dataset that was read; only those whose history has changed are computed."""
        if not reading.dataset_ids:
            return {}
        charged = [
            (self._rows[dataset], event, steps)
            for dataset, account in reading.accounts.items()
            for event, steps in account.history.items()
        ]
        rows = np.array([self._rows[dataset] for dataset in reading.dataset_ids], dtype=np.int64)
        mechanisms = self._population.mechanisms([event for _, event, _ in charged])
        steps = np.array([steps for _, _, steps in charged], dtype=np.int64)
        self._population.restate([row for row, _, _ in charged], mechanisms, steps, accounts=rows)
        return dict(zip(reading.dataset_ids, self._population.epsilons(rows).tolist(), strict=True))
