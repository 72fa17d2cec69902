"""The client's own guard: it charges first, then lets training run, and trusts no server.

Formal guarantee: whatever grants a server sends, over all runs, the updates that leave this client are
(epsilon, delta)-differentially private for the client's own budget. The charge is on disk before a record is read; a
crash afterwards leaves it standing. There is one account for one file, whatever a server calls its task or the client.
"""

from __future__ import annotations

from fedprivacy.accounting import DEFAULT_FILTER, FILTERS
from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import History, PoissonSampledGaussian
from fedprivacy.ledger import Allowance, ChargeState, Ledger

_SHARD = "this shard"


class BudgetExhaustedError(Exception):
    """The client's own budget does not allow the grant."""


class Odometer:
    """One client's account of its own shard.

    Args:
        url: the client's own file, `sqlite:///path`, on a disk that outlives the process; one for each shard.
        budget: what the data owner allows over all runs.
        filter: name of the filter that enforces it.
    """

    def __init__(self, url: str, budget: PrivacyBudget, filter: str = DEFAULT_FILTER) -> None:
        self._ledger = Ledger(url)
        self._filter = FILTERS[filter](budget)
        self._ledger.open_budgets({_SHARD: Allowance(budget, filter)})

    def charge(self, run_id: str, round: int, event: PoissonSampledGaussian, steps: int) -> None:
        """Write the charge durably, whole or not at all.

        Raises:
            BudgetExhaustedError: fewer than `steps` steps are left. Nothing is charged.
            LedgerError: the odometer's file cannot be written, or this round was charged before.
        """

        def all_or_nothing(_: str, history: History) -> int:
            return steps if self._filter.quota(history, event) >= steps else 0

        if not self._ledger.reserve(run_id, round, event, {_SHARD: steps}, all_or_nothing):
            raise BudgetExhaustedError("This client's own budget does not allow the grant.")

    def commit(self, run_id: str, round: int) -> None:
        """Note that training ended and the update may leave."""
        self._ledger.settle(run_id, round, [_SHARD], ChargeState.COMMITTED)
