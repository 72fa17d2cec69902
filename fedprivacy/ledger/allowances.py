"""Allowances of datasets, as the ledger keeps them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, select

from fedprivacy.ledger.dialects import among
from fedprivacy.ledger.schema import budgets
from fedprivacy.values.budget import Allowance, PrivacyBudget


def allowances_of(connection: Connection, dataset_ids: Collection[str]) -> dict[str, Allowance]:
    """The budgets in force; datasets without one are missing."""
    rows = connection.execute(select(budgets).where(among(connection.dialect, budgets.c.dataset_id, dataset_ids)))
    return {dataset_id: _allowance(*row) for dataset_id, *row in rows}


@lru_cache(maxsize=1024)
def _allowance(
    epsilon: float | None, delta: float, filter: str, expires: datetime.datetime | None, deliberate: bool
) -> Allowance:
    """A budget from its row; most datasets have the same."""
    return Allowance(
        PrivacyBudget(math.inf if epsilon is None else epsilon, delta), filter, in_utc(expires), deliberate
    )


def in_utc(instant: datetime.datetime | None) -> datetime.datetime | None:
    """An instant as the ledger writes it; SQLite keeps no time zone, and PostgreSQL may give it in another."""
    if instant is None:
        return None
    return instant.replace(tzinfo=datetime.UTC) if instant.tzinfo is None else instant.astimezone(datetime.UTC)


def written(allowance: Allowance) -> list[Any]:
    """A budget as it stands in the journal."""
    epsilon = allowance.budget.epsilon if allowance.budget.enforced else None
    return [epsilon, allowance.budget.delta, allowance.filter, allowance.expires and allowance.expires.isoformat()]


def budget_row(dataset_id: str, allowance: Allowance) -> dict[str, Any]:
    """A budget as it stands in its table."""
    return {
        "dataset_id": dataset_id,
        "epsilon": allowance.budget.epsilon if allowance.budget.enforced else None,
        "delta": allowance.budget.delta,
        "filter": allowance.filter,
        "expires": allowance.expires,
        "deliberate": allowance.deliberate,
    }


def contradiction(name: str, dataset_id: str, known: Allowance, asked: Allowance) -> str:
    """Says that a dataset has another budget than a run asks for, and what to do."""

    def words(a: Allowance) -> str:
        return f"epsilon {a.budget.epsilon:g}, delta {a.budget.delta:g}, filter {a.filter}"

    return (
        f"ledger {name} gives dataset {dataset_id} a budget of {words(known)}, and this run asks for {words(asked)}: "
        "a budget belongs to the dataset, over all runs. Use the ledger's budget, change it by 'fedprivacy ledger "
        "budget set', or use another ledger."
    )
