"""Data from which the figures of a run are drawn: a bounded amount, however many clients and rounds there were.

A history in memory and a run in the store both become a `RunSeries`, so that page, report and notebook draw the same.
It needs numpy alone: displaying a run loads neither torch nor Flower.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprivacy.values.attempt import QUESTIONS
from fedprivacy.values.numbers import or_infinite
from fedprivacy.values.spent import ClientStanding, ClientState
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import NO_PRIVACY, epsilon_text, noise_text

MOST_ROUNDS = 300  # more rounds than this are thinned: a plot has no more pixels
MOST_CURVES = 20  # more different curves than this are drawn as a fan
MOST_CHOSEN = 10  # maximum number of clients drawn on top of a fan
MOST_TURNS = 200  # maximum number of exhaustions marked in a fan
MOST_COLUMNS = 60  # maximum number of columns of a cost map: more would be too narrow to point at


@dataclass(frozen=True, slots=True)
class EpsilonSpread:
    """Quantiles of the clients' epsilons after a round; infinite where no bound is known."""

    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float

    @classmethod
    def of(cls, epsilons: ArrayLike) -> Self:
        """Return the quantiles of epsilons, shape [clients]; all zero without a client."""
        given = np.asarray(epsilons, dtype=np.float64)
        if given.size == 0:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        with np.errstate(invalid="ignore"):  # between a number and infinity, numpy finds no number
            found = np.quantile(given, [0.0, 0.25, 0.5, 0.75, 1.0])
        return cls(*np.where(np.isnan(found), math.inf, found).tolist())


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Constants of a run."""

    run_id: str  # unique in the ledger
    name: str  # for people, the last part of the run's folder
    settings: Mapping[str, Any]  # the configuration by hyphenated key; JSON types
    noise_multiplier: float  # sigma of every local step, the least of any client's; 0 without privacy, or see below
    relation: str  # the neighbouring relation of every event
    metric: str  # key of the figure that is shown first
    largest_noise_multiplier: float = 0.0  # where clients have their own; else not above noise_multiplier
    # Both are 0 until the first client enrols, where each client's noise is determined at its enrolment.
    unit: str = str(RECORD)  # the unit of privacy

    @property
    def noise_text(self) -> str:
        """The noise multiplier for people: of every client, or from the smallest to the largest."""
        if self.private and not self.noise_multiplier:
            return "each client's own"
        return noise_text(self.noise_multiplier, self.largest_noise_multiplier) if self.private else NO_PRIVACY

    @property
    def asks(self) -> bool:
        """True if the run asked questions and trained nothing; it then has one round, whose metrics are the answers."""
        return self.run_id.startswith(QUESTIONS)

    @property
    def private(self) -> bool:
        """True if local steps clip and add noise; else the run is a baseline, and no epsilon bounds what it reveals."""
        return self.settings.get("privacy") is not False  # an earlier version has no such setting

    def epsilon_text(self, epsilon: float, budget: float = math.inf) -> str:
        """Return an epsilon of this run for people; for a baseline, the words for "no privacy"."""
        return epsilon_text(epsilon, budget) if self.private else NO_PRIVACY

    @property
    def task(self) -> str:
        """The task's name, without the file that it came from."""
        return str(self.settings["task"]).rpartition(":")[2]

    @property
    def strategy(self) -> str:
        """The strategy's name, without its file; together with the algorithm's name unless that is the default."""
        name = str(self.settings.get("strategy", "")).rpartition(":")[2]
        algorithm = str(self.settings.get("algorithm", "fedavg"))  # an earlier version has none
        return name if algorithm == "fedavg" else algorithm if name == "fedavg" else f"{algorithm}, {name}"

    @property
    def delta(self) -> float:
        """Delta of the budget that the run asked for."""
        return float(self.settings["delta"])

    @property
    def budget(self) -> float:
        """Epsilon of the budget that the run asked for; infinite: it only measures."""
        return or_infinite(self.settings.get("epsilon"))

    @property
    def rounds(self) -> int:
        """Number of planned rounds."""
        return int(self.settings["rounds"])

    @property
    def local_steps(self) -> int:
        """Local steps in each round."""
        return int(self.settings["local-steps"])

    @property
    def schedule(self) -> Schedule:
        """The number of steps charged in each round."""
        return Schedule(self.local_steps, int(self.settings.get("local-evaluation", 0)))  # an earlier version has none


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """A finished round in few numbers."""

    round: int  # counted from 1; 0 is the state before the first round
    metrics: Mapping[str, float]  # of the global model on the server's public records
    epsilons: EpsilonSpread  # of all clients, over all rounds and runs
    clients: int  # number of enrolled clients
    participants: int  # number of averaged updates
    failed: int  # number of updates asked for and not used
    exhausted: int  # clients with nothing left of their budget
    unreconciled: int  # clients with a charge of this run without a receipt
    # Time of recording, seconds since 1970, UTC; NaN if unknown, as in a folder, which has no clock. It does not
    # count when rounds are compared.
    at: float = field(default=math.nan, compare=False)


@dataclass(frozen=True, slots=True)
class Curve:
    """The epsilon of clients that are alike in every round."""

    client_ids: tuple[str, ...]  # these clients
    rounds: tuple[int, ...]  # since they were enrolled
    epsilons: tuple[float, ...]  # after each of those rounds
    exhausted_in: int | None  # the first of those rounds after which no step was left; None: some is
    state: ClientState  # of their budgets: active, spent as planned, or exhausted
    budget: float  # their epsilon budget, maybe infinite

    @property
    def turn(self) -> tuple[int, float] | None:
        """The round after which no step was left, and the epsilon then; None: some is left."""
        if self.exhausted_in is None:
            return None
        return self.exhausted_in, self.epsilons[self.rounds.index(self.exhausted_in)]


@dataclass(frozen=True, slots=True)
class ClientCurves:
    """The epsilons of some clients round by round."""

    clients: Sequence[ClientStanding]  # shape [clients]
    rounds: Sequence[int]  # shape [rounds], ascending
    epsilons: NDArray[np.float64]  # shape [rounds, clients]; not a number before a client was enrolled

    def each(self) -> list[Curve]:
        """Return one curve for each client that was enrolled by then."""
        curves = map(self._curve, self.clients, self.epsilons.T)
        return [curve for curve in curves if curve.rounds]

    def alike(self) -> list[Curve]:
        """Return one curve for each group of identical clients; largest final epsilon first, ties by earliest
        exhaustion.
        """
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for curve in self.each():
            groups[curve.rounds, curve.epsilons, curve.exhausted_in, curve.state, curve.budget] += curve.client_ids
        curves = [Curve(tuple(client_ids), *shape) for shape, client_ids in groups.items()]
        return sorted(curves, key=lambda curve: (-curve.epsilons[-1], curve.exhausted_in or math.inf))

    def _curve(self, client: ClientStanding, epsilons: NDArray[np.float64]) -> Curve:
        known = ~np.isnan(epsilons)
        rounds = tuple(int(number) for number in np.asarray(self.rounds)[known])
        turn = client.exhausted_in
        shown_turn = None if turn is None else next((number for number in rounds if number >= turn), None)
        state = ClientState.ACTIVE if shown_turn is None else client.budget_state
        budget = client.spent.budget_epsilon
        return Curve((client.client_id,), rounds, tuple(epsilons[known].tolist()), shown_turn, state, budget)


@dataclass(frozen=True, slots=True)
class RunSeries:
    """The data of a run that its figures need."""

    facts: RunFacts  # constants of the run
    points: tuple[RoundPoint, ...]  # finished rounds, thinned; always the last
    worst: tuple[float, float] = (0.0, math.inf)  # epsilon and budget of the client that spent most
    budgets: tuple[float, ...] = ()  # the different finite budgets, ascending
    states: Mapping[str, int] = field(default_factory=dict)  # number of clients in each state that there is
    # Every client's epsilon, those that are alike as one; None: there are more than `MOST_CURVES`.
    curves: tuple[Curve, ...] | None = None
    outer: tuple[Curve, ...] = ()  # if so, the curves of the client that spent most and of the one that spent least
    chosen: tuple[Curve, ...] = ()  # curves of the clients that somebody chose
    # Rounds and epsilons at which the clients of a fan were exhausted, at most `MOST_TURNS`.
    turns: tuple[tuple[int, float], ...] = ()

    @property
    def last(self) -> RoundPoint:
        """The state after the last finished round.

        Raises:
            ValueError: there is none yet.
        """
        if not self.points:
            raise ValueError("the run has no finished round to draw; wait for its first.")
        return self.points[-1]


@dataclass(frozen=True, slots=True)
class CostMap:
    """Growth of each client's epsilon, round by round."""

    client_ids: tuple[str, ...]  # the rows
    first: tuple[int, ...]  # the first round of each column, shape [columns]
    last: tuple[int, ...]  # its last round
    # Growth of epsilon within the column, shape [clients, columns]; NaN: not enrolled, or without a bound.
    growth: NDArray[np.float64] = field(compare=False)

    @classmethod
    def of(cls, client_ids: Iterable[str], ends: Sequence[int], epsilons: NDArray[np.float64]) -> Self:
        """Make the map from what clients had spent before the first column and after each, shape [1 + columns,
        clients].

        The first column begins with round 1, and each ends with its last round of `ends`, ascending. Not a number: not
        enrolled, infinite: without a bound.
        """
        with np.errstate(invalid="ignore"):  # from no bound to no bound is no growth that could be named
            growth = np.diff(epsilons, axis=0).T
        growth[~np.isfinite(growth)] = np.nan
        first = tuple(before + 1 for before, _ in pairwise([0, *ends]))
        return cls(tuple(client_ids), first, tuple(ends), growth)


def spread_rounds(last: int, most: int = MOST_ROUNDS) -> range:
    """Return at most `most` of rounds 1 to `last`, evenly spread, including the last."""
    step = stride(last, most)
    return range(last - (last - 1) // step * step, last + 1, step) if last > 0 else range(0)


def stride(count: int, most: int) -> int:
    """Return the interval at which items are shown, so that at most `most` of `count` are."""
    return max(1, math.ceil(count / most))


Rounds = TypeVar("Rounds", int, NDArray[np.int64])


class Schedule(NamedTuple):
    """Number of steps of a client that joins every round."""

    local_steps: int  # training steps in each round
    local_evaluation: int  # interval, in rounds, of an additional step that evaluates; 0: never

    def evaluates(self, round: int) -> bool:
        """Return whether clients evaluate the global model in a round."""
        return bool(self.local_evaluation) and round % self.local_evaluation == 0

    def steps_in(self, round: int) -> int:
        """Number of steps charged in a round."""
        return self.local_steps + self.evaluates(round)

    def steps_until(self, rounds: Rounds) -> Rounds:
        """Number of steps charged in the first `rounds` rounds; for an array, elementwise."""
        steps = rounds * self.local_steps
        return steps + rounds // self.local_evaluation if self.local_evaluation else steps

    def rounds_within(self, steps: int) -> int:
        """Number of whole rounds that so many steps pay for."""
        if not self.local_evaluation:
            return steps // self.local_steps
        turns, rest = divmod(steps, self.steps_until(self.local_evaluation))  # each ends with a round that evaluates
        return turns * self.local_evaluation + min(rest // self.local_steps, self.local_evaluation - 1)
