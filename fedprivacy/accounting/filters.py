"""Privacy filters: they decide how many more steps a budget allows, before the steps are taken.

A filter enforces a budget. A running epsilon at a moment that depends on the data is the reading of an odometer
(Rogers, Roth, Ullman, Vadhan 2016, arXiv 1605.08294), not a guarantee; the guarantee is the budget the filter keeps.

Which filter is sound depends on who chooses the mechanisms. `FixedMechanismFilter` is tight and demands that the
sampling rate and the noise multiplier never change; `GaussianFilter` is exact and lets the noise change, but supports
only the Gaussian mechanism without sampling, such as questions; `AdaptiveFilter` lets everything depend on earlier
releases and pays for it with an RDP bound. `FixedThenAdaptiveFilter` is one of the first two until something changes
and the last from then on, and pays for the choice with a share of delta. Stopping an adaptively chosen sequence
when its composed PLD reaches the budget does *not* give (epsilon, delta)-differential privacy (arXiv 2602.06756, arXiv
2602.15815), because the privacy profiles of different mechanisms cross, and an adversary may pick the next one by the
noise of the last. (Those of Gaussians do not cross.) For the same reason a filter may not be exchanged for another on
the way, unless both were paid for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from fedprivacy.accounting import rdp
from fedprivacy.accounting.calibration import (
    LEAST_NOISE,
    MOST_NOISE,
    Calibration,
    NoiseSearch,
    alone,
    check_solvable,
    solve,
    step_quota,
)
from fedprivacy.accounting.gdp import gaussian_mu
from fedprivacy.accounting.histories import UNLIMITED, executed_events, extend_history
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian, is_unsampled_gaussian

# Measured over epsilon 0.25 to 16 and delta 1e-8 to 1e-4: a pure Gaussian keeps 90 to 100 % of the steps that its best
# order allows. With 0.75 it keeps 92 to 100 %, but a sampled one (q 0.01, sigma 1.42, epsilon 1) drops from 829 to 107.
_SHARE_OF_GAUSSIAN_OPTIMUM = 0.65


SHARE_FOR_OTHERS = 0.02
"""Share of delta that `FixedThenAdaptiveFilter` keeps for histories that are neither one event nor Gaussians alone.

It is part of the promise under the filter's name, so it never changes. It costs a history of one mechanism 0.1 % more
noise (measured over epsilon 1 to 8, delta 1e-5 and 1e-3), and a history of several 8 to 28 % more than all of delta
would. A share of 0.1 would make that 5 to 16 %, and cost every other history 0.5 %.
"""

PARTS = 2**96
"""Number of parts in one: `GaussianFilter` counts the squares of mu in whole parts, each rounded up, for exact sums."""

_NOTHING: History = MappingProxyType({})


class MechanismChanged(ValueError):
    """A dataset's history holds another event than the requested one, and the filter cannot mix them."""


@dataclass(frozen=True, slots=True)
class Filter(ABC):
    """Filter that grants steps as long as the whole history is certain to stay within a budget."""

    budget: PrivacyBudget

    @abstractmethod
    def quota(self, past: History, event: Event) -> int:
        """Return how many more executions of `event` the budget allows after `past`: 0 to `UNLIMITED`."""

    @abstractmethod
    def noise_search(
        self, sampling_rate: float, steps: int, relation: NeighbouringRelation, past: History, least: float
    ) -> NoiseSearch:
        """Search the smallest noise multiplier, at least `least`, that allows `steps` Poisson-sampled Gaussians after
        `past`. The noise of many is solved together.
        """

    def noise_multiplier(
        self,
        sampling_rate: float,
        steps: int,
        relation: NeighbouringRelation,
        past: History = _NOTHING,
        least: float = LEAST_NOISE,
    ) -> float:
        """Return what `noise_search` finds, or raise the error with which it ends."""
        return alone(solve([self.noise_search(sampling_rate, steps, relation, past, least)]))


@dataclass(frozen=True, slots=True)
class FixedMechanismFilter(Filter):
    """A step quota by the PLD, for datasets whose whole history is one event.

    Formal guarantee. Let n be the quota of an empty past. Every history that this filter lets happen is a prefix of the
    n-fold composition of one event, and the n-fold composition satisfies the budget. Which rounds the client joins,
    how many steps it takes and when it stops may all depend on what was released: an execution that does not happen
    is post-processing of one that does. The whole interaction is therefore (epsilon, delta)-differentially private. The
    budget must be fixed before anything is released: one that is raised in reaction to releases is not a bound but a
    reading.
    """

    def quota(self, past: History, event: Event) -> int:
        """Return how many more executions of `event` the budget allows.

        Raises:
            MechanismChanged: `past` holds another event.
        """
        for executed in executed_events(past):
            if executed != event:
                raise MechanismChanged(
                    f"the dataset's history holds {executed}, and {event} is asked for; the fixed-mechanism filter "
                    "holds for one event. Keep sampling-rate and noise-multiplier (and the neighbouring relation) as "
                    'they were, or start the dataset\'s ledger with `filter = "adaptive"`.'
                )
        return max(_whole_quota(event, self.budget) - sum(past.values()), 0) if self.budget.enforced else UNLIMITED

    def noise_search(
        self, sampling_rate: float, steps: int, relation: NeighbouringRelation, past: History, least: float
    ) -> NoiseSearch:
        """Search the smallest noise multiplier with which `steps` releases stay within the budget, see `calibration`.

        After a past it is the past's own, the only one that this filter allows: the past is repeated as long as the
        budget, or a limit that requires `least`, lasts.

        Raises:
            MechanismChanged: `past` holds other sampling rates, or another relation.
            ValueError: as `calibration.noise_multiplier`.
        """
        if repeated := _repeated_event(past, sampling_rate, relation):
            return repeated.noise_multiplier
        if executed := executed_events(past):
            self.quota(executed, PoissonSampledGaussian(sampling_rate, least, relation))  # refuses, and says why
        return max((yield Calibration(self.budget, sampling_rate, steps, relation)), least)


@lru_cache(maxsize=2**20)
def _whole_quota(event: Event, budget: PrivacyBudget) -> int:
    """Return the quota of an empty past, cached: it is needed for every client in every round, at each one's rate."""
    return step_quota(event, budget)


@dataclass(frozen=True, slots=True)
class GaussianFilter(Filter):
    """Exact, for Gaussian mechanisms without sampling, each with noise of its own that is chosen while they run.

    Formal guarantee (Smith, Thakurta 2022, arXiv 2210.17520; Koskela, Tobaben, Honkela 2023, arXiv 2209.15596). A
    release of sensitivity s with noise multiplier sigma costs (s / sigma)^2. If every release is chosen from what was
    released before it, and made only while the sum of the costs, its own included, stays at most mu^2, then the whole
    interaction is dominated by D(mu^2) = (N(mu, 1), N(0, 1)): it is mu-GDP. mu is the largest for which that meets the
    budget, so the interaction is (epsilon, delta)-differentially private, and exactly that: no smaller sum would do.

    Proof. With r left to spend, whatever follows is dominated by D(r): that is so where no release follows. A release
    of cost c <= r is dominated by D(c), and leaves r - c *whatever it showed*, so what follows is dominated by D(r - c)
    for each of its outcomes; both together by D(c) x D(r - c) (Zhu, Dong, Wang 2022, Theorem 10), which is D(r) seen
    after a rotation. By induction this holds for any number of releases, and in the limit without end.

    Costs are counted in whole parts of 2^-96, rounded up, and mu^2 is rounded down: every rounding is on the safe side.
    """

    def quota(self, past: History, event: Event) -> int:
        """Return how many more executions of `event` the budget allows.

        Raises:
            MechanismChanged: `event`, or one of `past`, is not a Gaussian without sampling.
            ValueError: the events mix neighbouring relations.
        """
        cost, spent = _gaussian_cost(event), _gaussian_spent(extend_history(past, event, 0))
        return min(max(self._parts - spent, 0) // cost, UNLIMITED) if self.budget.enforced else UNLIMITED

    def noise_search(
        self, sampling_rate: float, steps: int, relation: NeighbouringRelation, past: History, least: float
    ) -> NoiseSearch:
        """Search the smallest noise multiplier with which `steps` more releases stay within the budget, rounded up.

        Raises:
            MechanismChanged: `sampling_rate` is not 1, or `past` holds another event than a Gaussian without sampling.
            ValueError: the budget is infinite, or no noise multiplier up to 10^4 is enough.
        """
        yield from ()  # asks for no calibration
        check_solvable(self.budget, steps)
        event = PoissonSampledGaussian(sampling_rate, MOST_NOISE, relation)
        if self.quota(past, event) < steps:
            raise ValueError(_no_noise_is_enough(self.budget, steps, past))
        each = (self._parts - _gaussian_spent(executed_events(past))) // steps
        return max(event.sensitivity * math.sqrt(PARTS / each) * (1.0 + 1e-15), LEAST_NOISE, least)

    @property
    def _parts(self) -> int:
        """The budget's mu^2, in whole parts."""
        return math.floor(Fraction(gaussian_mu(self.budget.epsilon, self.budget.delta)) ** 2 * PARTS)


def _gaussian_spent(history: History) -> int:
    """Sum the costs of releases, in whole parts."""
    return sum(count * _gaussian_cost(event) for event, count in history.items())


@lru_cache(maxsize=2**16)
def _gaussian_cost(event: Event) -> int:
    """Return (s / sigma)^2 of one release, in whole parts, at least one."""
    if not is_unsampled_gaussian(event):
        raise MechanismChanged(f"{event} is no Gaussian without sampling, and the Gaussian filter knows no other.")
    return math.ceil((Fraction(event.sensitivity) / Fraction(event.noise_multiplier)) ** 2 * PARTS)


@dataclass(frozen=True, slots=True)
class AdaptiveFilter(Filter):
    """A Rényi filter of one fixed order, for mechanisms that are chosen while they run.

    Formal guarantee (Feldman, Zrnic 2021, arXiv 2008.11193, Theorem 3.1; Lécuyer 2021, arXiv 2103.01379). Fix an order
    a and a bound R before anything is released. If every mechanism is chosen from what was released before it, and the
    next is run only when the sum of the Rényi divergences of order a, its own included, stays at most R, then the whole
    interaction has a Rényi divergence of order a of at most R. R is the largest that converts to the budget (Canonne,
    Kamath, Steinke 2020), so the interaction is (epsilon, delta)-differentially private. Sampling rate, noise
    multiplier, number of steps and stopping may all depend on what was released.

    The order is a function of the budget alone; an order chosen in hindsight would void the theorem. It lies below the
    best order of a pure Gaussian, because the divergence of a *sampled* Gaussian explodes above an order that falls
    with the noise: that costs a pure Gaussian 4 % of its steps on average and spares many a sampled one from being
    refused. With noise multipliers below 1 few steps are granted all the same; `FixedMechanismFilter` grants more.

    Raises:
        ValueError: the budget is too small for any release to be provable at orders up to 1024.
    """

    def __post_init__(self) -> None:
        if self.bound <= 0.0:
            raise ValueError(
                f"epsilon is {self.budget.epsilon} at delta {self.budget.delta}, which RDP of order {self.order:g} "
                "cannot prove even of a release that reveals nothing; choose a larger epsilon, or the fixed-mechanism "
                "filter."
            )

    @property
    def order(self) -> float:
        """The Rényi order a: the one of `rdp.ORDERS` nearest to 1 + 0.65 sqrt(log(1 / delta) / rho).

        A mechanism with D_a = a rho for all a has epsilon = rho + 2 sqrt(rho log(1 / delta)), attained at the order
        1 + sqrt(log(1 / delta) / rho) (Bun, Steinke 2016, arXiv 1605.02065); rho is that of a mechanism on the budget.
        """
        log_inverse_delta = -math.log(self.budget.delta)
        root_rho = math.sqrt(self.budget.epsilon + log_inverse_delta) - math.sqrt(log_inverse_delta)
        above_one = _SHARE_OF_GAUSSIAN_OPTIMUM * math.sqrt(log_inverse_delta) / max(root_rho, 1e-9)
        return float(rdp.ORDERS[np.abs(np.log(rdp.ORDERS - 1.0) - math.log(max(above_one, 1e-9))).argmin()])

    @property
    def bound(self) -> float:
        """R, the largest Rényi divergence of the fixed order that proves the budget, in nats."""
        return rdp.to_divergence(self.budget.epsilon, self.budget.delta, self.order)

    def quota(self, past: History, event: Event) -> int:
        """Return how many more executions of `event` the bound allows.

        Raises:
            ValueError: the events mix neighbouring relations.
        """
        history = extend_history(past, event, 0)
        if not self.budget.enforced:
            return UNLIMITED
        spent = float(rdp.compose(history, [self.order])[0])
        cost = float(rdp.rdp(event, [self.order])[0])
        left = self.bound - spent
        if left < cost:
            return 0
        quota = UNLIMITED if cost * UNLIMITED <= left else int(left / cost)
        return quota if spent + quota * cost <= self.bound else quota - 1

    def noise_search(
        self, sampling_rate: float, steps: int, relation: NeighbouringRelation, past: History, least: float
    ) -> NoiseSearch:
        """Search the smallest noise multiplier with which `steps` more releases stay within the bound, to 1e-6 of it.

        Raises:
            ValueError: the budget is infinite, or no noise multiplier up to 10^4 is enough.
        """
        yield from ()  # asks for no calibration
        check_solvable(self.budget, steps)
        too_little, enough = LEAST_NOISE, MOST_NOISE
        while enough > too_little * (1.0 + 1e-6):
            middle = math.sqrt(too_little * enough)
            fits = self.quota(past, PoissonSampledGaussian(sampling_rate, middle, relation)) >= steps
            too_little, enough = (too_little, middle) if fits else (middle, enough)
        if self.quota(past, PoissonSampledGaussian(sampling_rate, enough, relation)) < steps:
            raise ValueError(_no_noise_is_enough(self.budget, steps, past))
        return max(enough, least)


def _no_noise_is_enough(budget: PrivacyBudget, steps: int, past: History) -> str:
    after = " after what was spent before" if past else ""
    return (
        f"epsilon is {budget.epsilon} at delta {budget.delta} for {steps} steps{after}, which a noise multiplier of "
        f"{MOST_NOISE:g} does not meet; choose a larger epsilon or fewer steps."
    )


@dataclass(frozen=True, slots=True)
class FixedThenAdaptiveFilter(Filter):
    """Tight as long as the whole history is one event, or Gaussians without sampling; adaptive from then on.

    Formal guarantee. Before anything is released delta is divided: (1 - w) delta for histories of one event, which
    `FixedMechanismFilter` keeps, or of Gaussians without sampling alone, which `GaussianFilter` keeps; and w delta, w =
    `SHARE_FOR_OTHERS`, for all others, which `AdaptiveFilter` keeps with the whole history, what came before the change
    included. Let an adversary see everything released, join, stop, choose every event but the first, and change events
    when it likes. Let P and Q be the distributions of the transcript on two neighbouring shards, T a set of
    transcripts, and M those of its transcripts that `AdaptiveFilter` keeps, F the others.

    - P(F) <= e^epsilon Q(F) + (1 - w) delta. The first event is chosen before anything is released, so it is one and
      the same in all transcripts. If it is a Gaussian without sampling, F has only such: the same adversary, stopped
      before it executes anything else, meets the condition of `GaussianFilter`. If it is another event, F has only
      transcripts of this one: the same adversary, stopped before anything else is executed, is one whose whole history
      is a prefix of the quota's n-fold composition. Either way F is an event of what the stopped adversary sees. (That
      another event is refused shows nothing: a quota depends on the history alone.)
    - P(M) <= e^epsilon Q(M) + w delta. The same adversary, stopped where the divergences would exceed the bound of
      `AdaptiveFilter`, meets the condition of its theorem. No transcript in M is cut short by that: from the first
      event on that makes it one of M, this filter allows a step only where the sum over the *whole* history stays
      within the bound, and the sum never falls, so it was within it before.

    T is the union of both, and the sum is P(T) <= e^epsilon Q(T) + delta. The first event may depend on nothing that
    was released; all others may. A second share of (1 - w) delta for Gaussians would be wasted: nobody can have both.

    Without the division the guarantee would be (epsilon, 2 delta): the adversary goes on with the first event where
    that has shown much, and changes where it has shown little.

    Earlier versions kept Gaussians of several noises by `AdaptiveFilter` and w delta, and of one by the PLD and
    (1 - w) delta, under this name. Both prove that their sum of (s / sigma)^2 stays within the mu^2 of (1 - w) delta,
    which is the largest that meets it: what was allowed then is allowed now. So a ledger that was begun under the old
    rule, or is kept by both in turn, has only transcripts of which the two lines above hold.
    """

    def quota(self, past: History, event: Event) -> int:
        """Return how many more executions of `event` the budget allows.

        Raises:
            MechanismChanged: `past` holds another event, and the budget is too small to prove anything for both.
            ValueError: the events mix neighbouring relations.
        """
        executed = executed_events(past)
        if is_unsampled_gaussian(event) and _only_gaussians(executed):
            return GaussianFilter(self._tight).quota(executed, event)
        if executed.keys() <= {event}:
            return FixedMechanismFilter(self._tight).quota(executed, event)
        return self._adaptive_filter.quota(executed, event)

    def noise_search(
        self, sampling_rate: float, steps: int, relation: NeighbouringRelation, past: History, least: float
    ) -> NoiseSearch:
        """Search the smallest noise multiplier that allows `steps` releases after `past`, the past's own or another.

        Raises:
            MechanismChanged: see `quota`.
            ValueError: the budget is infinite, or no noise multiplier up to 10^4 is enough.
        """
        executed, of_one_event = executed_events(past), FixedMechanismFilter(self._tight)
        if sampling_rate == 1.0 and _only_gaussians(executed):
            exact = GaussianFilter(self._tight)
            return (yield from exact.noise_search(sampling_rate, steps, relation, executed, least))
        if not executed:
            return (yield from of_one_event.noise_search(sampling_rate, steps, relation, executed, least))
        repeated = _repeated_event(past, sampling_rate, relation)
        if repeated is None or repeated.noise_multiplier < least or of_one_event.quota(past, repeated) < steps:
            return (yield from self._adaptive_filter.noise_search(sampling_rate, steps, relation, past, least))
        try:
            other = self._adaptive_filter.noise_multiplier(sampling_rate, steps, relation, past, least)
        except ValueError:  # no budget is left for another mechanism
            return repeated.noise_multiplier
        return min(repeated.noise_multiplier, other)

    @property
    def _tight(self) -> PrivacyBudget:
        """The budget for histories of one event, and for those of Gaussians without sampling."""
        return replace(self.budget, delta=(1.0 - SHARE_FOR_OTHERS) * self.budget.delta)

    @property
    def _adaptive_filter(self) -> AdaptiveFilter:
        """The filter for all other histories."""
        try:
            return AdaptiveFilter(replace(self.budget, delta=SHARE_FOR_OTHERS * self.budget.delta))
        except ValueError as error:
            raise MechanismChanged(
                f"the dataset's history holds another event than the one that is asked for, and the budget of epsilon "
                f"{self.budget.epsilon} is too small to prove anything of both. Keep sampling-rate and "
                "noise-multiplier as they were."
            ) from error


def _only_gaussians(executed: Mapping[Event, int]) -> bool:
    """Return whether nothing but Gaussians without sampling was executed."""
    return all(map(is_unsampled_gaussian, executed))


def _repeated_event(
    past: History, sampling_rate: float, relation: NeighbouringRelation
) -> PoissonSampledGaussian | None:
    """Return the one event of a past if releases at this rate would repeat it, else None."""
    match list(executed_events(past)):
        case [PoissonSampledGaussian() as event] if (event.sampling_rate, event.relation) == (sampling_rate, relation):
            return event
    return None


FILTERS: dict[str, Callable[[PrivacyBudget], Filter]] = {
    "fixed-mechanism": FixedMechanismFilter,
    "adaptive": AdaptiveFilter,
    "fixed-then-adaptive": FixedThenAdaptiveFilter,
}
"""Filters by the name that configurations and ledgers use."""


def filter_of(allowance: Allowance) -> Filter:
    """Return the filter that keeps a data owner's budget."""
    return FILTERS[allowance.filter](allowance.budget)


FILTER_OF_MIXTURES = "adaptive"
"""Filter for questions and training together, if the data owner names none: several mechanisms are expected."""

DEFAULT_FILTER = "fixed-then-adaptive"
"""Filter of a dataset if the data owner names none and nothing was charged yet under another."""
