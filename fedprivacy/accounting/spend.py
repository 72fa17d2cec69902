"""Spend: the share of a budget for all runs that one run may take, and why a filter may allow no further step.

A filter keeps a budget over all runs, whatever a run is allowed. A *spend* divides it: the part of the budget's epsilon
that one run may take. It is counted in composed epsilon at the budget's delta, so spends add up: after three runs of
spend 1 the reading is at most 3. The cost of a run *alone* is different, and more than its spend from the second run
on: losses compose like squares, so that the second of two equal spends needs less noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fedprivacy.accounting import pld
from fedprivacy.accounting.calibration import LEAST_NOISE, Calibration, NoiseSearch, alone, solve, step_quota
from fedprivacy.accounting.filters import (
    FILTERS,
    SHARE_FOR_OTHERS,
    AdaptiveFilter,
    Filter,
    FixedMechanismFilter,
)
from fedprivacy.accounting.histories import UNLIMITED, Executed, executed_events, extend_history
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian, is_unsampled_gaussian
from fedprivacy.values.wording import count_text, epsilon_text

MOST_RUNS = 20
"""Maximum number of further runs that are counted; beyond, a plan is a guess."""


@dataclass(frozen=True, slots=True)
class RunLimit:
    """Limit of one run on a dataset: the dataset's budget, and the run's own spend.

    Formal guarantee. The dataset's budget is kept by `kept`, under its own conditions: a limit only ever allows fewer
    steps. Besides, with h for what was executed before the run and e for one step of it, the composed epsilon of h and
    all steps of the run, at the budget's delta and by PLD, is at most min(epsilon(h) + spend, the budget's epsilon):
    steps of e are allowed up to the largest n for which h and n executions of e meet that. What the data decide during
    the run, when to join and when to stop, makes its history a prefix of that one. The spend is chosen, as e is, before
    the run begins, and may depend on all earlier releases. Therefore epsilon(h) + spend is a *reading*, like
    epsilon(h), and only the budget is the guarantee.

    Attributes:
        kept: the filter that keeps the dataset's budget over all runs.
        before: history before the run.
        spend: amount by which the run may raise epsilon, in nats; infinite: up to the budget.
        client_id: owner of the dataset, for error messages; empty: no client in particular.
    """

    kept: Filter
    before: History
    spend: float = math.inf
    client_id: str = ""

    @property
    def before_epsilon(self) -> float:
        """Epsilon of the history before the run, at the budget's delta."""
        return _epsilon(frozenset(self.before.items()), self.kept.budget.delta)

    @property
    def most(self) -> PrivacyBudget:
        """Largest reading at the end of the run: the budget that keeps the run within its spend."""
        budget = self.kept.budget
        if math.isinf(self.spend):
            return budget
        return PrivacyBudget(min(budget.epsilon, self.before_epsilon + self.spend), budget.delta)

    @property
    def whole(self) -> bool:
        """True if the budget has at least the whole spend left."""
        return self.before_epsilon + self.spend <= self.kept.budget.epsilon

    @property
    def spent(self) -> bool:
        """True if the budget allows not one more step of any earlier event: far more noise may help, or none."""
        try:
            return bool(self.before) and not any(self.kept.quota(self.before, event) for event in self.before)
        except ValueError:  # `quota` refuses with its reason when it is called for the run
            return False

    def quota(self, past: History, event: Event) -> int:
        """Return how many more executions of `event` the run may take, 0 to `UNLIMITED`.

        Args:
            past: all executions until now, in this run and in others. Executions of the same event by another run
                meanwhile count as this run's.
            event: the mechanism of the run's steps.

        Raises:
            MechanismChanged: the filter cannot compose `event` with `past`.
            ValueError: the events mix neighbouring relations.
        """
        allowed = self.kept.quota(past, event)
        if math.isinf(self.spend) or allowed == 0:
            return allowed
        before = executed_events(self.before)
        taken = executed_events(past).get(event, 0) - before.get(event, 0)
        whole = _quota(frozenset(before.items()), event, self.most)
        return min(allowed, max(whole - taken, 0)) if whole < UNLIMITED else allowed

    def noise_multiplier(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
        """Return the smallest noise multiplier with which the run may take `steps` steps, by `Filter.noise_search`.

        Raises:
            MechanismChanged: the filter allows no such run after the history before it.
            ValueError: budget and spend are infinite, or no noise is enough: the budget is spent.
        """
        return alone(solve([self.noise_search(sampling_rate, steps, relation)]))

    def noise_search(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> NoiseSearch:
        """Search what `noise_multiplier` returns, so that the noise of many runs is solved together."""
        if self.spent:
            raise ValueError(self._why_spent(sampling_rate, steps, relation))
        return (yield from self._least_noise(sampling_rate, steps, relation))

    def _least_noise(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> NoiseSearch:
        kept, least = self.kept, LEAST_NOISE
        if math.isfinite(self.spend):
            least = yield Calibration(self.most, sampling_rate, steps, relation, frozenset(self.before.items()))
            if not kept.budget.enforced:
                return least
        return (yield from kept.noise_search(sampling_rate, steps, relation, self.before, least))

    def _why_spent(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> str:
        """Name the filter and the noise that bound a spent client, and what helps: more noise only if it does."""
        budget, name = self.kept.budget, next(name for name, kind in FILTERS.items() if kind is type(self.kept))
        executed = "; ".join(sorted(map(str, self.before)))
        try:
            enough = math.ceil(100 * alone(solve([self._least_noise(sampling_rate, steps, relation)]))) / 100
            helps = self.quota(self.before, PoissonSampledGaussian(sampling_rate, enough, relation)) >= steps
        except ValueError:  # no noise is enough
            helps = False
        return (
            f"{self.client_id or 'a client'} has spent {epsilon_text(self.before_epsilon, budget.epsilon, 4)} of "
            f"epsilon {budget.epsilon} at delta {budget.delta}: not one more step of what was executed before, "
            f"{executed}, is allowed. The budget is kept by the {name} filter, which stops before all of it is read, "
            "early where a noise multiplier is below 1. "
            + (f"A noise-multiplier of {enough:g} allows all {steps} steps of this run; else t" if helps else "T")
            + "ake other records, or let the data owner decide on a larger epsilon."
        )


def shared_noise(limits: Sequence[RunLimit], sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
    """Return one noise multiplier for a run's clients, who may have different histories.

    It is the smallest one with which every client that has the run's whole spend left can take all steps. If there is
    no such client, or no spend, it is the smallest one for the client that has most left. Clients with less left take
    part as long as their budgets last.

    Args:
        limits: one for each client, or for each that differs; at least one.
        sampling_rate: q of the run's steps, in (0, 1].
        steps: number of steps of a client that joins every round, at least 1.
        relation: the neighbouring relation of the events.

    Raises:
        MechanismChanged: no client's filter allows such a run after what was executed before.
        ValueError: no client can take part: every budget is spent.
    """
    found = solve([limit.noise_search(sampling_rate, steps, relation) for limit in limits])
    noises = [(limit, noise) for limit, noise in zip(limits, found, strict=True) if not isinstance(noise, ValueError)]
    if not noises:
        return alone(found[:1])  # raises
    whole = [noise for limit, noise in noises if limit.whole]
    return max(whole) if whole else min(noise for _, noise in noises)


def more_runs(kept: Filter, past: History, event: Event, steps: int) -> int:
    """Return how many runs of `steps` steps of one event a budget allows after a past, each with the same noise."""
    try:
        return kept.quota(past, event) // steps
    except ValueError:  # no filter composes them
        return 0


def runs_left(limit: RunLimit, event: PoissonSampledGaussian, steps: int, *, solved_anew: bool = False) -> int:
    """Return how many more runs like the given one the budget allows after it, with the same number of steps.

    Args:
        limit: limit of the given run.
        event: event of one of its steps.
        steps: number of steps of a client that joins every round, at least 1.
        solved_anew: whether each run takes the whole spend, with its own noise; otherwise all have the noise of
            `event`.

    Returns:
        0 to `MOST_RUNS`, if the budget is enforced or the spend finite; `MOST_RUNS` stands for more, too.
    """
    past = extend_history(limit.before, event, min(steps, limit.quota(limit.before, event)))
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
        past = extend_history(past, replace(event, noise_multiplier=noise), steps)
    return MOST_RUNS


@lru_cache(maxsize=4096)
def _epsilon(executed: Executed, delta: float) -> float:
    return pld.epsilon(dict(executed), delta) if executed else 0.0


@lru_cache(maxsize=2**16)
def _quota(before: Executed, event: Event, most: PrivacyBudget) -> int:
    return step_quota(event, most, dict(before))


def shortage(kept: Filter, past: History, event: PoissonSampledGaussian, steps: int) -> str:
    """Name the filter and the noise that leave fewer steps of an event after a past than are wanted, and what helps.

    >>> from fedprivacy.values.budget import PrivacyBudget
    >>> from fedprivacy.values.events import NeighbouringRelation
    >>> kept = FILTERS["adaptive"](PrivacyBudget(1.0, 1e-5))
    >>> event = PoissonSampledGaussian(0.05, 1.0, NeighbouringRelation.ZERO_OUT)
    >>> past = {event: kept.quota({}, event)}
    >>> why, helps = shortage(kept, past, event, 40).split(". ")
    >>> why
    'With noise multiplier 1 the adaptive filter allows no step more: its RDP bound lies above the epsilon that is read'

    Args:
        kept: filter that keeps the budget.
        past: everything that was executed.
        event: one step.
        steps: number of steps that are wanted, more than are allowed.
    """
    more = more_runs(kept, past, event, 1)
    name = next(name for name, kind in FILTERS.items() if kind is type(kept))
    return (
        f"With noise multiplier {event.noise_multiplier:.4g} the {name} filter allows "
        f"{count_text(more, 'more step') if more else 'no step more'}: "
        f"{_bound(kept, past, event)}. {_remedy(kept, past, event, steps)}"
    )


def _bound(kept: Filter, past: History, event: Event) -> str:
    """Say how a filter bounds a past with one more step."""
    try:
        history = extend_history(past, event, 1)
    except ValueError:
        return "no theorem composes what was executed"
    if isinstance(kept, AdaptiveFilter):
        return "its RDP bound lies above the epsilon that is read"
    if len(history) == 1 or (not isinstance(kept, FixedMechanismFilter) and all(map(is_unsampled_gaussian, history))):
        return "further ones would exceed the budget"
    if isinstance(kept, FixedMechanismFilter):
        return "it keeps its promise for one mechanism alone, and another was executed before"
    return (
        f"for several mechanisms it has {SHARE_FOR_OTHERS:.0%} of delta and an RDP bound, which lies above the epsilon "
        "that is read"
    )


def _remedy(kept: Filter, past: History, event: PoissonSampledGaussian, steps: int) -> str:
    """Say which noise helps: that of earlier steps, or one for all steps that are wanted; or what else does."""
    earlier = [event for event in past if isinstance(event, PoissonSampledGaussian)]
    left, same = max(((more_runs(kept, past, e, 1), e.noise_multiplier) for e in earlier), default=(0, 0.0))
    if left < steps:
        try:
            enough = math.ceil(100 * kept.noise_multiplier(event.sampling_rate, steps, event.relation, past)) / 100
            if kept.quota(past, replace(event, noise_multiplier=enough)) >= steps:
                return f"A noise-multiplier of {enough:g} allows {count_text(steps, 'step')}."
        except ValueError:  # no noise is enough, or the filter takes no other
            pass
    if left:
        return f"The earlier noise multiplier, {same:.4g}, allows {count_text(left, 'more step')}."
    return "No noise helps: take other records, or let the data owner decide on a larger epsilon."
