"""Privacy filters: how many more steps a budget allows, decided before they are taken.

A filter is what enforces a budget. A running epsilon at a moment that depends on the data is the reading of an odometer
(Rogers, Roth, Ullman, Vadhan 2016, arXiv 1605.08294), not a guarantee; the guarantee is the budget the filter keeps.

Which filter is sound depends on who chooses the mechanisms. `FixedMechanismFilter` is tight and demands that the
sampling rate and the noise multiplier never change; `AdaptiveFilter` lets them depend on everything released so far and
pays for it with an RDP bound; `FixedThenAdaptiveFilter` is the first until something changes and the second from then
on, and pays for the choice with a share of delta. There is no tighter one: stopping an adaptively chosen sequence when
its composed PLD reaches the budget does *not* give (epsilon, delta)-differential privacy (arXiv 2602.06756, arXiv
2602.15815), because the privacy profiles of different mechanisms cross, and an adversary may pick the next one by the
noise of the last. For the same reason nobody may go from one filter to another on the way, unless both were paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

import numpy as np

from fedprivacy.accounting import rdp
from fedprivacy.accounting.calibration import LEAST_NOISE, MOST_NOISE, UNLIMITED, noise_multiplier, step_quota
from fedprivacy.accounting.histories import checked, extended
from fedprivacy.values.budget import Allowance, PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian

# Measured over epsilon 0.25 to 16 and delta 1e-8 to 1e-4: a pure Gaussian keeps 90 to 100 % of the steps that its best
# order allows. With 0.75 it keeps 92 to 100 %, but a sampled one (q 0.01, sigma 1.42, epsilon 1) drops from 829 to 107.
_SHARE_OF_GAUSSIAN_OPTIMUM = 0.65


SHARE_FOR_OTHERS = 0.02
"""Share of delta that `FixedThenAdaptiveFilter` keeps for histories of several mechanisms.

Part of what is promised under its name, so it never changes. It costs a history of one mechanism 0.1 % of its noise
(measured over epsilon 1 to 8, delta 1e-5 and 1e-3); a history of several, 8 to 28 % beside all of delta: 0.1 would make
that 5 to 16 %, and cost every other history 0.5 %.
"""

_NOTHING: History = MappingProxyType({})


class MechanismChanged(ValueError):
    """A dataset's history holds another event than the one that a filter is asked for, and the filter cannot mix."""


class Filter(Protocol):
    """Grants steps as long as the whole history is certain to stay within a budget."""

    @property
    def budget(self) -> PrivacyBudget:
        """The budget that is kept."""

    def quota(self, past: History, event: Event) -> int:
        """How many more executions of `event` the budget allows after `past`: 0 to `UNLIMITED`."""

    def noise_multiplier(
        self,
        sampling_rate: float,
        steps: int,
        relation: NeighbouringRelation,
        past: History = _NOTHING,
        least: float = LEAST_NOISE,
    ) -> float:
        """Least noise, of at least `least`, with which `steps` Poisson-sampled Gaussians are allowed after `past`."""


@dataclass(frozen=True, slots=True)
class FixedMechanismFilter:
    """A step quota by the PLD, for datasets whose whole history is one event.

    Formal guarantee. Let n be the quota of an empty past. Every history that this filter lets happen is a prefix of the
    n-fold composition of one event, and the n-fold composition satisfies the budget. Which rounds the client joins,
    how many steps it takes and when it stops may all depend on what was released: an execution that does not happen
    is post-processing of one that does. The whole interaction is therefore (epsilon, delta)-differentially private. The
    budget must be fixed before anything is released: one that is raised for what was seen is no bound, but a reading.
    """

    budget: PrivacyBudget

    def quota(self, past: History, event: Event) -> int:
        """How many more executions of `event` the budget allows.

        Raises:
            MechanismChanged: `past` holds another event.
        """
        for executed in checked(past):
            if executed != event:
                raise MechanismChanged(
                    f"the dataset's history holds {executed}, and {event} is asked for; the fixed-mechanism filter "
                    "holds for one event. Keep sampling-rate and noise-multiplier (and the neighbouring relation) as "
                    'they were, or start the dataset\'s ledger with `filter = "adaptive"`.'
                )
        return max(_whole_quota(event, self.budget) - sum(past.values()), 0) if self.budget.enforced else UNLIMITED

    def noise_multiplier(
        self,
        sampling_rate: float,
        steps: int,
        relation: NeighbouringRelation,
        past: History = _NOTHING,
        least: float = LEAST_NOISE,
    ) -> float:
        """Least noise with which `steps` releases stay within the budget by the PLD, see `calibration`.

        After a past it is the past's own, the only one that this filter allows: whoever takes it repeats the past as
        long as the budget, or a limit that asks for `least`, lasts.

        Raises:
            MechanismChanged: `past` holds other sampling rates, or another relation.
            ValueError: as `calibration.noise_multiplier`.
        """
        if repeated := _repeated(past, sampling_rate, relation):
            return repeated.noise_multiplier
        if executed := checked(past):
            self.quota(executed, PoissonSampledGaussian(sampling_rate, least, relation))  # refuses, and says why
        return max(noise_multiplier(self.budget, sampling_rate, steps, relation), least)


@lru_cache(maxsize=2**20)
def _whole_quota(event: Event, budget: PrivacyBudget) -> int:
    """Of an empty past: asked for every client in every round, and each may have a rate of its own."""
    return step_quota(event, budget)


@dataclass(frozen=True, slots=True)
class AdaptiveFilter:
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

    budget: PrivacyBudget

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
        """How many more executions of `event` the bound allows.

        Raises:
            ValueError: the events mix neighbouring relations.
        """
        history = extended(past, event, 0)
        if not self.budget.enforced:
            return UNLIMITED
        spent = float(rdp.compose(history, [self.order])[0])
        cost = float(rdp.rdp(event, [self.order])[0])
        left = self.bound - spent
        if left < cost:
            return 0
        quota = UNLIMITED if cost * UNLIMITED <= left else int(left / cost)
        return quota if spent + quota * cost <= self.bound else quota - 1

    def noise_multiplier(
        self,
        sampling_rate: float,
        steps: int,
        relation: NeighbouringRelation,
        past: History = _NOTHING,
        least: float = LEAST_NOISE,
    ) -> float:
        """Least noise with which `steps` more releases stay within the bound, to a relative 1e-6.

        Raises:
            ValueError: the budget is infinite, or no noise multiplier up to 10^4 is enough.
        """
        if not self.budget.enforced:
            raise ValueError("epsilon is infinite; choose a finite epsilon, or choose the noise multiplier yourself.")
        too_little, enough = LEAST_NOISE, MOST_NOISE
        while enough > too_little * (1.0 + 1e-6):
            middle = math.sqrt(too_little * enough)
            fits = self.quota(past, PoissonSampledGaussian(sampling_rate, middle, relation)) >= steps
            too_little, enough = (too_little, middle) if fits else (middle, enough)
        if self.quota(past, PoissonSampledGaussian(sampling_rate, enough, relation)) < steps:
            after = " after what was spent before" if past else ""
            raise ValueError(
                f"epsilon is {self.budget.epsilon} at delta {self.budget.delta} for {steps} steps{after}, which a "
                f"noise multiplier of {MOST_NOISE:g} does not meet; choose a larger epsilon or fewer steps."
            )
        return max(enough, least)


@dataclass(frozen=True, slots=True)
class FixedThenAdaptiveFilter:
    """Tight as long as the whole history is one event, adaptive from the first other event on.

    Formal guarantee. Before anything is released delta is divided: (1 - w) delta for histories of one event, which
    `FixedMechanismFilter` keeps, and w delta, w = `SHARE_FOR_OTHERS`, for all others, which `AdaptiveFilter` keeps with
    the whole history, what came before the change included. Let an adversary see everything released, join, stop,
    choose every event but the first, and change events when it likes. Let P and Q be the distributions of the
    transcript on two neighbouring shards, T a set of transcripts, F those of its transcripts whose history is one event
    and M the others. Then

    - P(F) <= e^epsilon Q(F) + (1 - w) delta. The same adversary, stopped before another event is executed, is one whose
      whole history is a prefix of the quota's n-fold composition; F is an event of what it sees. (That another event
      is refused shows nothing: a quota depends on the history alone.)
    - P(M) <= e^epsilon Q(M) + w delta. The same adversary, stopped where the divergences would exceed the bound of
      `AdaptiveFilter`, meets the condition of its theorem. No transcript in M is cut short by that: from the first
      other event on this filter allows a step only where the sum over the *whole* history stays within the bound, and
      the sum never falls, so it was within it before.

    T is the union of both, and the sum is P(T) <= e^epsilon Q(T) + delta. The first event is chosen before anything is
    released, so it may depend on nothing that was.

    Without the division the guarantee would be (epsilon, 2 delta): the adversary goes on with the first event where
    that has shown much, and changes where it has shown little.
    """

    budget: PrivacyBudget

    def quota(self, past: History, event: Event) -> int:
        """How many more executions of `event` the budget allows.

        Raises:
            MechanismChanged: `past` holds another event, and the budget is too small to prove anything of both.
            ValueError: the events mix neighbouring relations.
        """
        executed = checked(past)
        if executed.keys() <= {event}:
            return self._of_one.quota(executed, event)
        return self._of_several.quota(executed, event)

    def noise_multiplier(
        self,
        sampling_rate: float,
        steps: int,
        relation: NeighbouringRelation,
        past: History = _NOTHING,
        least: float = LEAST_NOISE,
    ) -> float:
        """Least noise with which `steps` releases are allowed after `past`, be it the past's own or another.

        Raises:
            MechanismChanged: see `quota`.
            ValueError: the budget is infinite, or no noise multiplier up to 10^4 is enough.
        """
        if not checked(past):
            return self._of_one.noise_multiplier(sampling_rate, steps, relation, least=least)
        repeated = _repeated(past, sampling_rate, relation)
        if repeated is None or repeated.noise_multiplier < least or self._of_one.quota(past, repeated) < steps:
            return self._of_several.noise_multiplier(sampling_rate, steps, relation, past, least)
        try:
            other = self._of_several.noise_multiplier(sampling_rate, steps, relation, past, least)
        except ValueError:  # nothing is left for another mechanism
            return repeated.noise_multiplier
        return min(repeated.noise_multiplier, other)

    @property
    def _of_one(self) -> FixedMechanismFilter:
        """What keeps histories of one event."""
        return FixedMechanismFilter(replace(self.budget, delta=(1.0 - SHARE_FOR_OTHERS) * self.budget.delta))

    @property
    def _of_several(self) -> AdaptiveFilter:
        """What keeps all others."""
        try:
            return AdaptiveFilter(replace(self.budget, delta=SHARE_FOR_OTHERS * self.budget.delta))
        except ValueError as error:
            raise MechanismChanged(
                f"the dataset's history holds another event than the one that is asked for, and the budget of epsilon "
                f"{self.budget.epsilon} is too small to prove anything of both. Keep sampling-rate and "
                "noise-multiplier as they were."
            ) from error


def _repeated(past: History, sampling_rate: float, relation: NeighbouringRelation) -> PoissonSampledGaussian | None:
    """The one event of a past, where releases at this rate would repeat it."""
    match list(checked(past)):
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
    """What keeps a data owner's budget."""
    return FILTERS[allowance.filter](allowance.budget)


DEFAULT_FILTER = "fixed-then-adaptive"
"""The filter of whoever names none, where nothing was charged yet under another."""
