"""How a run stands, and what became of the updates that it asked for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from fedprivacy.values.rounds import Phase
from fedprivacy.values.series import RoundPoint, RunFacts


class RunStatus(enum.StrEnum):
    """How a run stands. `STOPPED`: it ended before its last round, because nobody had budget left."""

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
