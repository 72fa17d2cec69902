"""The status of a run, failures of its updates, results of audits, and results as rows."""

from __future__ import annotations

import enum
import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedprivacy.values.rounds import Phase
from fedprivacy.values.series import RoundPoint, RunFacts

if TYPE_CHECKING:
    import pandas


class RunStatus(enum.StrEnum):
    """The status of a run. `STOPPED`: it ended before its last round, because no budget was left or somebody stopped
    it.
    """

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunStanding:
    """A run and its current state."""

    facts: RunFacts  # constants of the run
    status: RunStatus
    phase: Phase | None  # current activity; None: idle, before its first round and after its end
    started: float  # seconds since 1970, UTC
    updated: float  # time of its last sign of life, same unit
    changes: int  # grows with every change of the run or its rounds
    last: RoundPoint | None  # the newest finished round; None: not even the state before the first is known

    @property
    def running(self) -> bool:
        """True until the run says that it ended."""
        return self.status is RunStatus.RUNNING

    @property
    def finished(self) -> int:
        """Number of the newest finished round; 0: none."""
        return self.last.round if self.last else 0


@dataclass(frozen=True, slots=True)
class Failures:
    """Updates that were asked for and not used, for one reason."""

    reason: str  # the code, perhaps with a detail after a colon
    times: int  # number of updates
    clients: int  # number of different clients
    client_ids: tuple[str, ...]  # some of them
    last_round: int  # the newest round


@dataclass(frozen=True, slots=True)
class RunTally:
    """Counts of a run's clients by state and of its unused updates by reason."""

    states: Mapping[str, int]  # number of clients in each state; states without a client are missing
    least_budget: float | None  # the smallest finite epsilon budget; None: no client has one
    # The largest share of a budget that is spent; infinite if an epsilon has no bound, None: no budget.
    most_share: float | None
    failures: Mapping[str, int]  # updates asked for and not used, by reason, over all rounds


class Verdict(enum.StrEnum):
    """The comparison of a lower bound with the accountant's upper bound."""

    CONSISTENT = "consistent"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A lower bound on a privacy loss, found by attack, and the upper bound of the accountant."""

    at: float  # time of the audit, in seconds since the epoch
    attack: str  # name of the attack
    client_id: str  # client whose loss is bounded; empty: the run as a whole
    lower: float  # epsilon that the attack proved, with probability `confidence`
    confidence: float  # of the lower bound, for example 0.95
    upper: float  # epsilon that the accountant states, maybe infinite
    delta: float  # delta of both bounds
    accountant: str  # source of the upper bound
    view: str  # observer for whom both bounds hold

    @property
    def verdict(self) -> Verdict:
        """Violated: the attack proved a larger loss than the accountant allows. One of them is wrong, or the code."""
        return Verdict.CONSISTENT if self.lower <= self.upper else Verdict.VIOLATED


_MOST_SHOWN = 50
"""Maximum number of rows of a table in a notebook."""


class Rows(list[dict[str, Any]]):
    """Results as plain dictionaries with the same keys; convertible to a data frame. A notebook shows a table.

    >>> rows = Rows([{"client_id": "client-0", "epsilon": 1.5}])
    >>> rows[0]["epsilon"]
    1.5
    """

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with a row for each row and a column for each key.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("pandas is not installed; pip install pandas, or use the rows as they are.") from error
        return pd.DataFrame.from_records(self)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{html.escape(key)}</th>" for key in (self[0] if self else ()))
        rows = [
            [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row.values()]
            for row in self[:_MOST_SHOWN]
        ]
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        more = len(self) - len(rows)
        return f"<table><tr>{heads}</tr>{body}</table>" + f"<p>and {more} more</p>" * bool(more)
