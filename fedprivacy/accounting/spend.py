"""What one run may take of a budget that is for all runs.

A budget is kept over all runs by a filter, whatever a run is allowed. A *spend* divides it: how much of the budget's
epsilon one run may take. It is counted where budgets are read, in composed epsilon at the budget's delta, so spends add
up: after three runs of spend 1 no more than 3 is read. What a run costs *alone* is something else, and more than its
spend from the second run on: losses compose like squares, so that the second of two equal spends needs less noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedprivacy.accounting import pld
from fedprivacy.accounting.calibration import LEAST_NOISE, UNLIMITED, noise_multiplier, step_quota
from fedprivacy.accounting.filters import Filter
from fedprivacy.accounting.histories import checked, extended
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian

MOST_RUNS = 20
"""That are counted ahead: beyond, a plan is a guess."""

_Executed = frozenset[tuple[Event, int]]


@dataclass(frozen=True, slots=True)
class RunLimit:
    """How far one run may go on a dataset: to the dataset's budget, and no further than its own spend.

    Formal guarantee. The dataset's budget is kept by `kept`, under its own conditions: a limit only ever allows fewer
    steps. Besides, with h for what was executed before the run and e for one step of it, the composed epsilon of h and
    all steps of the run, at the budget's delta and by PLD, is at most min(epsilon(h) + spend, the budget's epsilon):
    steps of e are allowed up to the largest n for which h and n executions of e meet that. What the data decide during
    the run, when to join and when to stop, makes its history a prefix of that one. The spend is chosen, as e is, before
    the run begins, and may depend on all that was released before; that is why epsilon(h) + spend is a *reading*, like
    epsilon(h), and the budget alone the guarantee.

    Attributes:
        kept: the filter that keeps the dataset's budget over all runs.
        before: what was executed before the run.
        spend: by how much the run may raise epsilon, in nats; infinite: as far as the budget goes.
        client_id: whose dataset it is, for what is said of it; empty: nobody's in particular.
    """

    kept: Filter
    before: History
    spend: float = math.inf
    client_id: str = ""

    @property
    def before_epsilon(self) -> float:
        """Epsilon of what was executed before, at the budget's delta."""
        return _epsilon(frozenset(self.before.items()), self.kept.budget.delta)

    @property
    def most(self) -> PrivacyBudget:
        """The most that may be read when the run has ended, and what keeps the run within its spend."""
        budget = self.kept.budget
        if math.isinf(self.spend):
            return budget
        return PrivacyBudget(min(budget.epsilon, self.before_epsilon + self.spend), budget.delta)

    @property
    def whole(self) -> bool:
        """Whether all of the spend is left of the budget."""
        return self.before_epsilon + self.spend <= self.kept.budget.epsilon

    @property
    def spent(self) -> bool:
        """Whether the budget allows not one more step of anything that was executed before: noise is no remedy then."""
        try:
            return bool(self.before) and not any(self.kept.quota(self.before, event) for event in self.before)
        except ValueError:  # what no filter composes is refused where it is asked for, with its reason
            return False

    def quota(self, past: History, event: Event) -> int:
        """How many more executions of `event` the run may take, 0 to `UNLIMITED`.

        Args:
            past: all that was executed until now, in this run and in others. What another run executes of the same
                event meanwhile is taken for this run's.
            event: the mechanism of the run's steps.

        Raises:
            MechanismChanged: the filter cannot compose `event` with `past`.
            ValueError: the events mix neighbouring relations.
        """
        allowed = self.kept.quota(past, event)
        if math.isinf(self.spend) or allowed == 0:
            return allowed
        before = checked(self.before)
        taken = checked(past).get(event, 0) - before.get(event, 0)
        whole = _quota(frozenset(before.items()), event, self.most)
        return min(allowed, max(whole - taken, 0)) if whole < UNLIMITED else allowed

    def noise_multiplier(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
        """Least noise with which the run may take `steps` steps; see `Filter.noise_multiplier`.

        Raises:
            MechanismChanged: the filter allows no such run after what was executed before.
            ValueError: budget and spend are infinite, or no noise is enough: the budget is spent.
        """
        if self.spent:
            raise ValueError(
                f"{self.client_id or 'a client'} has spent {self.before_epsilon:.4f} of epsilon "
                f"{self.kept.budget.epsilon} at delta {self.kept.budget.delta}: not one more step of what was executed "
                "before is allowed. Take other records, or let the data owner decide on another budget."
            )
        least = LEAST_NOISE
        if math.isfinite(self.spend):
            least = noise_multiplier(self.most, sampling_rate, steps, relation, self.before)
            if not self.kept.budget.enforced:
                return least
        return self.kept.noise_multiplier(sampling_rate, steps, relation, self.before, least)


def shared_noise(limits: Sequence[RunLimit], sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
    """One noise multiplier for a run's clients, who may have spent differently before.

    The least with which every client that has the run's whole spend left can take all steps. If there is none, or no
    spend, the least with which the client that has most left can. Who has less left takes part as long as that lasts.

    Args:
        limits: one for each client, or for each that differs; at least one.
        sampling_rate: q of the run's steps, in (0, 1].
        steps: of a client that joins every round, at least 1.
        relation: the neighbouring relation of the events.

    Raises:
        MechanismChanged: no client's filter allows such a run after what was executed before.
        ValueError: no client can take part: every budget is spent.
    """
    solved: list[tuple[RunLimit, float]] = []
    problems: list[ValueError] = []
    for limit in limits:
        try:
            solved.append((limit, limit.noise_multiplier(sampling_rate, steps, relation)))
        except ValueError as problem:
            problems.append(problem)
    if not solved:
        raise problems[0]
    whole = [noise for limit, noise in solved if limit.whole]
    return max(whole) if whole else min(noise for _, noise in solved)


def more_runs(kept: Filter, past: History, event: Event, steps: int) -> int:
    """How many runs of so many steps of one event a budget allows after a past, each with this very noise."""
    try:
        return kept.quota(past, event) // steps
    except ValueError:  # no filter composes them
        return 0


def runs_left(limit: RunLimit, event: PoissonSampledGaussian, steps: int, *, solved_anew: bool = False) -> int:
    """How many more runs like one the budget allows after it, each of the same steps.

    Args:
        limit: of the one run.
        event: one step of it.
        steps: of a client that joins every round, at least 1.
        solved_anew: whether each is to take the whole spend, with noise of its own; else all have the noise of `event`.

    Returns:
        0 to `MOST_RUNS`, if the budget is enforced or the spend finite; `MOST_RUNS` stands for more, too.
    """
    past = extended(limit.before, event, min(steps, limit.quota(limit.before, event)))
    if not solved_anew:
        return min(more_runs(limit.kept, past, event, steps), MOST_RUNS)
    for further in range(MOST_RUNS):
        limit = replace(limit, before=past)
        if not limit.whole:
            return further
        try:
            noise = limit.noise_multiplier(event.sampling_rate, steps, event.relation)
        except ValueError:
            return further
        past = extended(past, replace(event, noise_multiplier=noise), steps)
    return MOST_RUNS


@lru_cache(maxsize=4096)
def _epsilon(executed: _Executed, delta: float) -> float:
    return pld.epsilon(dict(executed), delta) if executed else 0.0


@lru_cache(maxsize=2**16)
def _quota(before: _Executed, event: Event, most: PrivacyBudget) -> int:
    return step_quota(event, most, dict(before))
