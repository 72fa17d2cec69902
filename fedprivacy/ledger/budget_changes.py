"""A dataset's budgets over time: the one of its first run, and every change by an explicit act: who, when and why."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import select

from fedprivacy.ledger.schema import journal
from fedprivacy.ledger.store import Ledger

_BUDGETS = '%"kind":"budget"%'
"""Pattern of such entries: within a text of theirs the quotes would be escaped."""


class BudgetChange(NamedTuple):
    """A budget that a dataset was given.

    Attributes:
        at: time, in ISO 8601.
        epsilon: budget over all runs; None: losses are only measured.
        delta: delta of the budget.
        expires: time from which nothing is granted, in ISO 8601; None: never.
        reason: reason that was given; None: its first run brought it.
        by: who changed it, as they said, or the account of the operating system that did; empty: unknown.
    """

    at: str
    epsilon: float | None
    delta: float
    expires: str | None
    reason: str | None
    by: str


def budget_changes(
    ledger: Ledger, dataset_ids: Collection[str], last: int | None = None
) -> dict[str, list[BudgetChange]]:
    """Read the budgets that datasets were given, in order, from the journal.

    Args:
        ledger: the ledger.
        dataset_ids: datasets; one that is unknown has no budgets.
        last: number of the last entry that counts; None: all do.
    """
    found: dict[str, list[BudgetChange]] = {dataset_id: [] for dataset_id in dataset_ids}
    given = select(journal.c.entry).where(journal.c.entry.like(_BUDGETS)).order_by(journal.c.number)
    if last is not None:
        given = given.where(journal.c.number <= last)
    with ledger.database.reading() as connection:
        for (text,) in connection.execution_options(yield_per=1000).execute(given):
            entry = json.loads(text)
            for dataset_id in found.keys() & entry["budgets"].keys():
                epsilon, delta, _, expires = entry["budgets"][dataset_id]
                said = entry.get("reason"), entry.get("by", "")
                found[dataset_id].append(BudgetChange(entry["at"], epsilon, delta, expires, *said))
    return found
