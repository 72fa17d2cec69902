"""The central accountant: grants steps before they are taken, composes every client's privacy loss, round by round.

Formal guarantee: for every client whose budget is enforced, everything that the server receives about the client's
shard, over all rounds and runs on one ledger, is (epsilon, delta)-differentially private under the filter's conditions
(`fedprivacy.accounting.filters`). Steps are charged before they are granted, and a charge without a receipt stands.
What a run may take of a budget is limited besides, where it has a spend (`fedprivacy.accounting.spend`).
Sampling of clients amplifies nothing: the server sees who took part.
"""

from __future__ import annotations

import datetime
import heapq
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedprivacy.accounting import RunLimit, more_runs
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import Executed, without
from fedprivacy.accounting.population import PopulationAccountant
from fedprivacy.accounting.spend import shortage
from fedprivacy.ledger import NOTHING_SPENT, Account, Allowance, ChargeState, Ledger
from fedprivacy.ledger.charges import ChangedAccounts
from fedprivacy.ledger.journal import Head
from fedprivacy.ledger.replay import Evidence
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Claims, History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.spent import ClientSpent, PopulationSpent

_MOST_REMEMBERED = 2**16
"""Different histories whose quotas are kept: most clients share theirs."""


StepsLeft = Callable[[str, Allowance, History], int]
"""(dataset_id, its budget, its history) -> steps of the run that budget and spend still allow."""


class Enrolled(NamedTuple):
    """A client of the run: whose budget it spends, at which delta its loss is read, and what one local step costs."""

    client_id: str
    dataset_id: str
    delta: float
    event: PoissonSampledGaussian


class Odometer:
    """Every enrolled client's privacy loss, over all runs on one ledger, read again only where that was written since.

    A reading costs what was charged between two readings, by whatever run, and not what there are clients. It says what
    one that read every account would say: `fedprivacy.ledger.charges` has the reason. It is a reading and no guarantee:
    grants are decided by `Ledger.reserve`, on what the ledger holds then.

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
        """Read these clients, too, from now on. Raises ValueError: one was enrolled before with another delta."""
        datasets = [client.dataset_id for client in clients]
        rows = self._population.enrol(datasets, np.array([client.delta for client in clients])).tolist()
        self._rows |= dict(zip(datasets, rows, strict=True))
        self._clients |= dict(zip(datasets, clients, strict=True))
        self._unread.update(datasets)

    def read(self) -> PopulationSpent:
        """Everybody's privacy loss so far, by client_id."""
        now = datetime.datetime.now(datetime.UTC)
        while self._expiring and self._expiring[0][0] <= now:  # its budget has ended since the last reading
            self._unread.add(heapq.heappop(self._expiring)[1])
        reading = self._ledger.read_changed(self._clients.keys(), self._head, self._unread)
        self.last = self.last.update(self._spent_by(reading))
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


class CentralAccountant:
    """Grants, commits and reports for the clients of one run.

    Args:
        ledger: where charges are kept, over all runs.
        relation: the neighbouring relation of every event.
        budget: each client's budget over all runs, where it has none of its own and the ledger was given no other by an
            explicit act.
        filter: name of the filter that enforces it.
        keep_filter: whether a dataset that is known keeps the filter that it has.
        run_id: of the run; what it was charged already, before it was stopped, counts as its own.
        spend: how much of a budget's epsilon the run may take; infinite: all that is left.
    """

    def __init__(
        self,
        ledger: Ledger,
        relation: NeighbouringRelation,
        budget: PrivacyBudget,
        filter: str,
        *,
        keep_filter: bool = False,
        run_id: str = "",
        spend: float = math.inf,
    ) -> None:
        self._ledger = ledger
        self._asked = Allowance(budget, filter)
        self._keep_filter = keep_filter
        self._run_id = run_id
        self._spend = spend
        self._before: dict[str, Executed] = {}
        self._datasets: dict[str, str] = {}
        self._events: dict[str, PoissonSampledGaussian] = {}
        self._odometer = Odometer(ledger, relation, self._steps_left)

    def enrol(
        self,
        datasets: Mapping[str, str],
        events: Mapping[str, PoissonSampledGaussian],
        claims: Mapping[str, Claims] | None = None,
        budgets: Mapping[str, PrivacyBudget] | None = None,
    ) -> dict[str, int]:
        """Open the accounts of clients.

        Args:
            datasets: client_id -> dataset_id, what the client's budget belongs to.
            events: client_id -> what one local step of this run costs the client.
            claims: client_id -> steps by run and event, as the client's own guard has them. The larger of both
                books counts.
            budgets: client_id -> the client's own budget; who is missing has the run's.

        Returns:
            Steps that a client's own book held beyond the ledger, and that are charged now, by client_id.

        Raises:
            LedgerError: a dataset already has another budget.
            MechanismChanged: a dataset was charged with another mechanism than the filter can compose with.
        """
        in_force = self._ledger.open_budgets(self._allowances(datasets, budgets or {}))
        claimed = {c: self._ledger.reconcile(datasets[c], own) for c, own in (claims or {}).items()}
        accounts = self._ledger.accounts(list(datasets.values()))
        own = self._ledger.accounts_in_run(self._run_id, list(datasets.values()))
        for client_id, dataset in datasets.items():
            history = accounts.get(dataset, NOTHING_SPENT).history
            _check_composes(in_force[dataset], frozenset(history.items()), events[client_id])
            before = without(history, own.get(dataset, NOTHING_SPENT).history) if history else history
            self._before[dataset] = frozenset(before.items())
        self._datasets |= datasets
        self._events |= {dataset: events[client_id] for client_id, dataset in datasets.items()}
        self._odometer.enrol(
            [
                Enrolled(client_id, dataset, in_force[dataset].budget.delta, events[client_id])
                for client_id, dataset in datasets.items()
            ]
        )
        return {client_id: steps for client_id, steps in claimed.items() if steps}

    def event(self, client_id: str) -> PoissonSampledGaussian:
        """The event that a local step of this run charges a client, and the account that it is charged to."""
        return self._events[self._datasets[client_id]]

    def grant(self, attempt: Attempt, wanted: Mapping[str, int], *, resumed: bool = False) -> dict[str, int]:
        """Reserve steps for an attempt at a round, before any message leaves.

        Args:
            attempt: what the steps are for; another attempt is another charge.
            wanted: local steps by client_id.
            resumed: whether this attempt may have been charged before the run was stopped; then it is not again.

        Returns:
            Granted steps, at least 1, by client_id. Exhausted clients are missing.
        """
        steps = {self._datasets[client_id]: wanted_steps for client_id, wanted_steps in wanted.items()}

        def allowed(dataset: str, history: History, allowance: Allowance) -> int:
            return self._steps_left(dataset, allowance, history)

        events = {dataset: self._events[dataset] for dataset in steps}
        granted = self._ledger.reserve(attempt, events, steps, allowed, resumed=resumed)
        return {c: granted[self._datasets[c]] for c in wanted if self._datasets[c] in granted}

    def commit(self, attempt: Attempt, receipts: Mapping[str, Evidence | None]) -> None:
        """Confirm the charges of clients whose receipts, by client_id, matched their grants; None in a simulation."""
        self._settle(attempt, receipts, ChargeState.COMMITTED)

    def void(self, attempt: Attempt, client_ids: Collection[str]) -> None:
        """Return the charges of clients that refused before they touched a record."""
        self._settle(attempt, dict.fromkeys(client_ids), ChargeState.VOID)

    def charged(self, attempt: Attempt) -> set[str]:
        """Clients that an attempt was charged to."""
        datasets = self._ledger.charged(attempt)
        return {client_id for client_id, dataset in self._datasets.items() if dataset in datasets}

    def unreconciled(self, run_id: str) -> dict[Attempt, set[str]]:
        """Clients whose charges no receipt has confirmed, by what was charged in a run."""
        clients = {dataset: client_id for client_id, dataset in self._datasets.items()}
        return {
            attempt: {clients[dataset] for dataset in datasets & clients.keys()}
            for attempt, datasets in self._ledger.reserved(run_id).items()
        }

    def histories(self, client_ids: Collection[str]) -> dict[str, History]:
        """Each client's charges, over all runs on the ledger."""
        accounts = self._ledger.accounts([self._datasets[client_id] for client_id in client_ids])
        return {c: accounts.get(self._datasets[c], NOTHING_SPENT).history for c in client_ids}

    def shortage(self, client_id: str, steps: int) -> str:
        """Say why a client's budget allows no step of this run, and what helps; empty: its budget does allow one."""
        dataset, history = self._datasets[client_id], self.histories([client_id])[client_id]
        kept, event = _filter(self._ledger.allowances([dataset])[dataset]), self._events[dataset]
        return shortage(kept, history, event, steps) if more_runs(kept, history, event, 1) == 0 else ""

    def spent(self) -> PopulationSpent:
        """Every enrolled client's privacy loss, by client_id. Other runs on the same ledger count."""
        return self._odometer.read()

    def most_charged(self) -> History:
        """The charges, over all runs, of the client that has spent most, as `spent` last read it."""
        spent = self._odometer.last
        worst = next(islice(spent, int(spent.epsilons.argmax()), None)) if spent else None
        return self._odometer.history(self._datasets[worst]) if worst is not None else {}

    def _allowances(self, datasets: Mapping[str, str], budgets: Mapping[str, PrivacyBudget]) -> dict[str, Allowance]:
        """The allowance that the run asks for on each dataset."""
        known = self._ledger.allowances(datasets.values()) if self._keep_filter else {}
        kept = {filter: replace(self._asked, filter=filter) for filter in {each.filter for each in known.values()}}
        asked = {
            dataset: kept[known[dataset].filter] if dataset in known else self._asked for dataset in datasets.values()
        }
        own = {datasets[client_id]: budget for client_id, budget in budgets.items()}
        return asked | {dataset: replace(asked[dataset], budget=budget) for dataset, budget in own.items()}

    def _steps_left(self, dataset: str, allowance: Allowance, history: History) -> int:
        """Steps that budget and spend still allow; none where another run has charged what does not compose with it."""
        executed = frozenset(history.items())
        return _steps_left(allowance, self._before[dataset], self._spend, executed, self._events[dataset])

    def _settle(self, attempt: Attempt, receipts: Mapping[str, Evidence | None], state: ChargeState) -> None:
        of_datasets = {self._datasets[client_id]: receipt for client_id, receipt in receipts.items()}
        self._ledger.settle(attempt, of_datasets, state)


_filter = lru_cache(maxsize=1024)(filter_of)


@lru_cache(maxsize=_MOST_REMEMBERED)
def _steps_left(
    allowance: Allowance, before: Executed, spend: float, executed: Executed, event: PoissonSampledGaussian
) -> int:
    """Steps of an event that are left to all who have executed the same; see `CentralAccountant._steps_left`."""
    try:
        return RunLimit(_filter(allowance), dict(before), spend).quota(dict(executed), event)
    except ValueError:
        return 0


@lru_cache(maxsize=_MOST_REMEMBERED)
def _check_composes(allowance: Allowance, executed: Executed, event: PoissonSampledGaussian) -> None:
    """Refuse, as the filter does, a mechanism that it cannot compose with what was executed."""
    _filter(allowance).quota(dict(executed), event)
