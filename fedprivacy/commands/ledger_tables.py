"""What a ledger looks like in a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.console import Group
from rich.table import Table
from sqlalchemy import func, select

from fedprivacy.accounting import pld
from fedprivacy.ledger.charges import NOTHING_SPENT
from fedprivacy.ledger.errors import LedgerError
from fedprivacy.ledger.schema import ChargeState
from fedprivacy.ledger.schema import charges as charge_table
from fedprivacy.ledger.store import Ledger
from fedprivacy.values.events import Event
from fedprivacy.values.nulls import plain
from fedprivacy.values.wording import count_text, delta_text, epsilon_text

_MOST_ROWS = 50


@dataclass(frozen=True, slots=True)
class DatasetSpent:
    """What a dataset was charged over all runs, and may be.

    `epsilon` is by PLD, at the budget's `delta`, for the server's view; infinite: none is guaranteed. An infinite
    `budget` only measures. `open` charges have no receipt; they count. `expires` is in ISO 8601; empty: never.
    """

    dataset_id: str
    epsilon: float
    delta: float
    budget: float
    steps: int
    charges: int
    open: int
    expires: str


def datasets(ledger: Ledger, only: str = "") -> list[DatasetSpent]:
    """Every dataset of a ledger, or one.

    Raises:
        LedgerError: there is no such dataset.
    """
    ids = [only] if only else ledger.dataset_ids()
    allowances, accounts, open_charges = ledger.allowances(ids), ledger.accounts(ids), _open_charges(ledger)
    if only and only not in allowances:
        raise LedgerError(f"ledger {ledger.name} knows no dataset '{only}'; 'fedprivacy ledger show' lists them.")
    return [
        DatasetSpent(
            dataset_id=dataset_id,
            epsilon=_epsilon(frozenset(account.history.items()), allowance.budget.delta),
            delta=allowance.budget.delta,
            budget=allowance.budget.epsilon,
            steps=sum(account.history.values()),
            charges=account.rounds,
            open=open_charges.get(dataset_id, 0),
            expires=f"{allowance.expires:%Y-%m-%d}" if allowance.expires else "",
        )
        for dataset_id in ids
        for allowance, account in [(allowances[dataset_id], accounts.get(dataset_id, NOTHING_SPENT))]
    ]


def charges(ledger: Ledger, dataset_id: str) -> list[dict[str, Any]]:
    """A dataset's charges, in the order in which they were made."""
    shown = [column for column in charge_table.c if column.name not in ("charge_id", "dataset_id")]
    mine = select(*shown).where(charge_table.c.dataset_id == dataset_id).order_by(charge_table.c.charge_id)
    with ledger.database.reading() as connection:
        return [dict(row) for row in connection.execute(mine).mappings()]


def as_json(datasets: Sequence[DatasetSpent], charges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON has no infinity: a budget that only measures, or an epsilon that nothing bounds, is null."""
    shown: dict[str, Any] = {"datasets": [plain(dataset) for dataset in datasets]}
    return shown | ({"charges": list(charges)} if charges else {})


def page(datasets: Sequence[DatasetSpent], charges: Sequence[dict[str, Any]]) -> Group:
    """Datasets as a table, and a dataset's charges below it."""
    return Group(_dataset_table(datasets), *([_charge_table(charges)] if charges else []))


def _dataset_table(datasets: Sequence[DatasetSpent]) -> Table:
    more = len(datasets) - _MOST_ROWS
    table = Table(
        title="Privacy spent by each dataset (server's view, over all runs)",
        title_justify="left",
        caption="Accountant PLD. Open: charges without a receipt; they count."
        + (f" And {count_text(more, 'dataset')} more: --json shows all." if more > 0 else ""),
    )
    table.add_column("dataset")
    for column in ("epsilon", "budget", "delta", "steps", "charges", "open", "expires"):
        table.add_column(column, justify="right", no_wrap=True)
    for d in datasets[:_MOST_ROWS]:
        budget = "none" if d.budget == float("inf") else f"{d.budget:g}"
        epsilons = epsilon_text(d.epsilon, d.budget), budget, delta_text(d.delta)
        table.add_row(d.dataset_id, *epsilons, str(d.steps), str(d.charges), str(d.open), d.expires or "never")
    return table


def _charge_table(charges: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=f"Its last {min(len(charges), _MOST_ROWS)} of {len(charges)} charges", title_justify="left")
    table.add_column("run")
    for column in ("round", "attempt", "steps", "q", "sigma", "entry"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state")
    for c in charges[-_MOST_ROWS:]:
        amounts = c["round"] or "-", c["attempt"], c["steps"]
        rates = f"{c['sampling_rate']:.4g}", f"{c['noise_multiplier']:.4g}"
        table.add_row(c["run_id"][:8], *map(str, amounts), *rates, str(c["entry"]), c["state"])
    return table


def _open_charges(ledger: Ledger) -> dict[str, int]:
    reserved = charge_table.c.state == ChargeState.RESERVED
    counted = select(charge_table.c.dataset_id, func.count()).where(reserved).group_by(charge_table.c.dataset_id)
    with ledger.database.reading() as connection:
        return {str(dataset_id): int(count) for dataset_id, count in connection.execute(counted)}


@cache
def _epsilon(history: frozenset[tuple[Event, int]], delta: float) -> float:
    try:
        return pld.epsilon(dict(history), delta)
    except ValueError:  # mechanisms that no theorem composes: one such dataset must not hide all others
        return float("inf")
