"""How a run stands, what became of the updates that it asked for, what an attack found, and its results as rows."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedprivacy.values.rounds import Phase
from fedprivacy.values.series import RoundPoint, RunFacts

if TYPE_CHECKING:
    import pandas


class RunStatus(enum.StrEnum):
    """How a run stands. `STOPPED`: before its last round, because nobody had budget left, or somebody ended it."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunStanding:
    """A run, as it stands now."""

    facts: RunFacts  # what does not change
    status: RunStatus  # in a word
    phase: Phase | None  # what it is doing; None: nothing, before its first round and after its end
    started: float  # seconds since 1970, UTC
    updated: float  # its last sign of life, the same
    changes: int  # grows with every change of the run or its rounds
    last: RoundPoint | None  # the newest finished round; None: not even the state before the first is known

    @property
    def running(self) -> bool:
        """Whether it has not said that it ended."""
        return self.status is RunStatus.RUNNING

    @property
    def finished(self) -> int:
        """The newest finished round; 0: none."""
        return self.last.round if self.last else 0


@dataclass(frozen=True, slots=True)
class Failures:
    """One reason for which updates were asked for and not used."""

    reason: str  # the code, perhaps with a detail after a colon
    times: int  # how often
    clients: int  # how many different clients
    client_ids: tuple[str, ...]  # some of them
    last_round: int  # the newest round


@dataclass(frozen=True, slots=True)
class Tally:
    """A run's clients and what became of their updates, in few numbers."""

    states: Mapping[str, int]  # how many clients are in each state; states without a client are missing
    least_budget: float | None  # the smallest finite epsilon budget; None: no client has one
    # The largest share of a budget that is spent; infinite if an epsilon has no bound, None: no budget.
    most_share: float | None
    failures: Mapping[str, int]  # how often updates were asked for and not used, by reason, over all rounds of the run


class Verdict(enum.StrEnum):
    """Whether a lower bound leaves room for the upper one."""

    CONSISTENT = "consistent"
    VIOLATED = "violated"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A lower bound on a privacy loss, found by attack, and the upper bound of the accountant."""

    at: float  # when, in seconds since the epoch
    attack: str  # its name
    client_id: str  # whose loss; empty: of the run as a whole
    lower: float  # epsilon that the attack proved, with probability `confidence`
    confidence: float  # of the lower bound, for example 0.95
    upper: float  # epsilon that the accountant states, maybe infinite
    delta: float  # of both
    accountant: str  # that the upper bound is from
    view: str  # whose eyes both bounds are for

    @property
    def verdict(self) -> Verdict:
        """Violated: the attack proved a larger loss than the accountant allows. Either is wrong, or the code is."""
        return Verdict.CONSISTENT if self.lower <= self.upper else Verdict.VIOLATED


class Rows(list[dict[str, Any]]):
    """Results as plain dictionaries that have the same keys, which become a data frame where somebody wants one.

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
