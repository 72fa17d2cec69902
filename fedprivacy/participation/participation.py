"""The course of a round: the clients that are available, asked, and in time, and the end of the round.

A `Cohort` samples the clients to ask from those that are available. Formal guarantee: none, as the package says: the
server knows the clients that are asked, and each spends the cost of a round.

All of it is a function of the run's key, the round, the clients' ids and public numbers: calls keep no state, so that
they may be repeated, for one client or for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedprivacy._support.settings import ConfigError
from fedprivacy.participation.draws import DrawPurpose, Draws
from fedprivacy.participation.timing import ALWAYS, INSTANT, Availability, Speeds

DROPPED_OUT, TOO_LATE = "dropped-out", "too-late"
"""Reasons why an update is not averaged."""


class Cohort(Protocol):
    """Rule that chooses clients by one uniform draw for each."""

    def choose(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Return the clients that a round asks, given a number between 0 and 1 for each, shape [clients]."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """A fixed number of clients, or all if there are fewer: every set of that size is equally likely."""

    size: int

    def choose(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Return the clients with the smallest numbers."""
        if len(client_ids) <= self.size:
            return set(client_ids)
        return {client_ids[n] for n in np.argpartition(drawn, self.size)[: self.size].tolist()}


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each client with the same probability, independently: a round may ask many, or nobody."""

    rate: float

    def choose(self, client_ids: Sequence[str], drawn: NDArray[np.float64]) -> set[str]:
        """Return the clients whose number is below the rate."""
        return {client_ids[n] for n in np.flatnonzero(drawn < self.rate).tolist()}


COHORTS: dict[str, Callable[[int, int], Cohort]] = {
    "fixed": lambda size, clients: FixedSize(size),
    "poisson": lambda size, clients: Poisson(size / clients),
}
"""Factories of cohorts by name: (expected size, number of the run's clients) -> cohort."""


@dataclass(frozen=True, slots=True)
class Turnout:
    """Clients that may be asked in a round, and its beginning: infinite if no client is ever available again."""

    client_ids: AbstractSet[str]
    began: float


@dataclass(frozen=True, slots=True)
class Closed:
    """End of a round: its time, and the clients whose answers do not count, each with the reason."""

    missed: Mapping[str, str]
    ended: float


@dataclass(frozen=True, slots=True)
class Participation:
    """Rules by which clients take part in a run's rounds. Times are simulated seconds since the run began.

    A client that is asked and drops out before it begins, or leaves before it has finished, releases nothing, but the
    server cannot know that: its grant stays charged. A client that answers too late has trained, and its release is
    charged like any other.

    Attributes:
        draws: random draws of the run.
        cohort: rule that samples clients; None: all that may be asked are.
        wanted: number of first answers that a round waits for; None: all that arrive.
        drop_out: probability with which a client that is asked does not begin.
        deadline: seconds after which a round is over.
        speeds: speeds of local steps; `INSTANT`: there is no clock, nothing takes time and nobody is late.
        availability: times at which clients are available.
    """

    draws: Draws = field(repr=False)
    cohort: Cohort | None = None
    wanted: int | None = None
    drop_out: float = 0.0
    deadline: float = math.inf
    speeds: Speeds = INSTANT
    availability: Availability = ALWAYS

    @property
    def clocked(self) -> bool:
        """True if there is a simulated clock."""
        return self.speeds != INSTANT

    @property
    def selective(self) -> bool:
        """True if some clients that could be asked may be left out of a round."""
        return self.cohort is not None or self.availability != ALWAYS

    @property
    def eventful(self) -> bool:
        """True if a client that is asked may fail to answer, or to answer in time."""
        return self.clocked or self.drop_out > 0.0 or self.wanted is not None or self.availability != ALWAYS

    def check(self, client_ids: Collection[str], steps: int) -> None:
        """Check that the clients are known to the traces, and can take so many steps by the deadline.

        Raises:
            ConfigError: a client is unknown or too slow. Nothing has been spent.
        """
        self.speeds.check(client_ids)
        self.availability.check(client_ids)
        if math.isfinite(self.deadline):
            fastest = steps * min(map(self.speeds.seconds, client_ids))
            if fastest > self.deadline:
                raise ConfigError(
                    f"deadline is {self.deadline:g}, and the fastest client takes {fastest:.4g} simulated seconds "
                    "for a round, so that no update would be averaged; give a later deadline."
                )

    def turnout(self, round: int, client_ids: Iterable[str], at: float) -> Turnout:
        """Sample a round's clients from those that are available, or wait until one is.

        Args:
            round: number of the round, from 1.
            client_ids: clients that could be asked.
            at: end of the round before.
        """
        there, began = self._there(list(client_ids), at)
        if self.cohort is None:
            return Turnout(set(there), began)
        return Turnout(self.cohort.choose(there, self.draws.uniforms(DrawPurpose.COHORT, there, round)), began)

    def _there(self, client_ids: list[str], at: float) -> tuple[list[str], float]:
        """Return the first available clients, and the time: now, or as soon as one is available."""
        if self.availability == ALWAYS:
            return client_ids, at
        coming = {client_id: self.availability.next(client_id, at)[0] for client_id in client_ids}
        began = max(at, min(coming.values(), default=at))
        return [client_id for client_id, start in coming.items() if start <= began < math.inf], began

    def begins(self, round: int, steps: Mapping[str, int], began: float) -> set[str]:
        """Return the clients that train to the end and answer, too late or not, given the steps of each."""
        if self.drop_out == 0.0 and self.availability == ALWAYS:
            return set(steps)
        return {
            client_id
            for client_id, count in steps.items()
            if not self._drops_out(client_id, round)
            and self._arrival(client_id, count, began) <= self.availability.next(client_id, began)[1]
        }

    def closes(self, round: int, steps: Mapping[str, int], began: float, usable: Collection[str]) -> Closed:
        """Return the clients whose answers are missing or late, and the time at which the server goes on.

        It goes on when it has all the answers that it wants, or when every client has answered or is known to have
        left, and no later than at the deadline. A connection that breaks is noticed at once.

        Args:
            round: number of the round, from 1.
            steps: number of steps granted to each client.
            began: time at which they were asked.
            usable: clients whose updates could be averaged.
        """
        over, training = began + self.deadline, self.begins(round, steps, began)
        if not self.clocked:
            return Closed(dict.fromkeys(steps.keys() - training, DROPPED_OUT), began)
        arrivals = {client_id: self._arrival(client_id, steps[client_id], began) for client_id in training}
        answering = training.intersection(usable)
        counted = {client_id for client_id in answering if arrivals[client_id] <= over}
        if self.wanted is not None:
            ties = {client_id: self.draws.uniform(DrawPurpose.TIE, client_id, round) for client_id in counted}
            counted = set(nsmallest(self.wanted, counted, key=lambda client_id: (arrivals[client_id], ties[client_id])))
        missed = dict.fromkeys(steps.keys() - training, DROPPED_OUT) | dict.fromkeys(answering - counted, TOO_LATE)
        if len(counted) == self.wanted:
            return Closed(missed, max(arrivals[client_id] for client_id in counted))
        gone = [  # when each that does not answer is known to have left
            began if self._drops_out(client_id, round) else self.availability.next(client_id, began)[1]
            for client_id in steps.keys() - training
        ]
        return Closed(missed, min(over, max([*arrivals.values(), *gone], default=began)))

    def _drops_out(self, client_id: str, round: int) -> bool:
        return self.drop_out > 0.0 and self.draws.uniform(DrawPurpose.DROP_OUT, client_id, round) < self.drop_out

    def _arrival(self, client_id: str, steps: int, began: float) -> float:
        return began + steps * self.speeds.seconds(client_id)
