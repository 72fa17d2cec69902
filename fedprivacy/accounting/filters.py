"""Privacy filters: how many more steps a budget allows, decided before they are taken.

A filter is what enforces a budget. A running epsilon at a moment that depends on the data is the reading of an odometer
(Rogers, Roth, Ullman, Vadhan 2016, arXiv 1605.08294), not a guarantee; the guarantee is the budget the filter keeps.

Which filter is sound depends on who chooses the mechanisms. `FixedMechanismFilter` is tight and demands that the
sampling rate and the noise multiplier never change; `AdaptiveFilter` lets them depend on everything released so far and
pays for it with an RDP bound. There is no third: stopping an adaptively chosen sequence when its composed PLD reaches
the budget does *not* give (epsilon, delta)-differential privacy (arXiv 2602.06756, arXiv 2602.15815), because the
privacy profiles of different mechanisms cross, and an adversary may pick the next one by the noise of the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedprivacy.accounting import rdp
from fedprivacy.accounting.calibration import UNLIMITED, step_quota
from fedprivacy.accounting.histories import checked, extended
from fedprivacy.budget import PrivacyBudget
from fedprivacy.events import Event, History

_LEAST_ORDER, _MOST_ORDER = float(rdp.ORDERS.min()), float(rdp.ORDERS.max())


class MechanismChanged(ValueError):  # noqa: N818 - it names what happened, as ledgers and reports do
    """A dataset's history holds another event than the one a `FixedMechanismFilter` is asked to repeat."""


class Filter(Protocol):
    """Grants steps as long as the whole history is certain to stay within a budget."""

    @property
    def budget(self) -> PrivacyBudget:
        """The budget that is kept."""

    def quota(self, past: History, event: Event) -> int:
        """How many more executions of `event` the budget allows after `past`: 0 to `UNLIMITED`."""


@dataclass(frozen=True, slots=True)
class FixedMechanismFilter:
    """A step quota by the PLD, for datasets whose whole history is one event.

    Formal guarantee. Let n be the quota of an empty past. Every history that this filter lets happen is a prefix of the
    n-fold composition of one event, and the n-fold composition satisfies the budget. Which rounds the client joins,
    how many steps it takes and when it stops may all depend on what was released: an execution that does not happen
    is post-processing of one that does. The interaction as a whole is therefore (epsilon, delta)-differentially private.

    Attributes:
        budget: the budget that is kept.
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
        return step_quota(event, self.budget, past)


@dataclass(frozen=True, slots=True)
class AdaptiveFilter:
    """A Rényi filter of one fixed order, for mechanisms that are chosen while they run.

    Formal guarantee (Feldman, Zrnic 2021, arXiv 2008.11193, Theorem 3.1; Lécuyer 2021, arXiv 2103.01379). Fix an order
    a and a bound R before anything is released. If every mechanism is chosen from what was released before it, and the
    next is run only when the sum of the Rényi divergences of order a, its own included, stays at most R, then the whole
    interaction has a Rényi divergence of order a of at most R. R is the largest that converts to the budget (Canonne,
    Kamath, Steinke 2020), so the interaction is (epsilon, delta)-differentially private. Sampling rate, noise
    multiplier, number of steps and stopping may all depend on what was released.

    The order is a function of the budget alone: the best one for a Gaussian mechanism that spends the budget exactly.
    An order chosen in hindsight would void the theorem.

    Attributes:
        budget: the budget that is kept.
        order: the Rényi order a; infinite epsilon needs none and has NaN.
        bound: R, in nats.

    Raises:
        ValueError: the budget is too small for any release to be provable at orders up to 1024.
    """

    budget: PrivacyBudget
    order: float = field(init=False)
    bound: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.budget.enforced:
            object.__setattr__(self, "order", math.nan)
            object.__setattr__(self, "bound", math.inf)
            return
        order = _order_of(self.budget)
        bound = rdp.to_divergence(self.budget.epsilon, self.budget.delta, order)
        if bound <= 0.0:
            raise ValueError(
                f"epsilon is {self.budget.epsilon} at delta {self.budget.delta}, which RDP of order {order:g} cannot "
                "prove even of a release that reveals nothing; choose a larger epsilon, or the fixed-mechanism filter."
            )
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "bound", bound)

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
        if left < 0.0 or math.isinf(cost):
            return 0
        quota = UNLIMITED if cost * UNLIMITED <= left else int(left / cost)
        while quota > 0 and spent + quota * cost > self.bound:
            quota -= 1
        return quota


def _order_of(budget: PrivacyBudget) -> float:
    """The order of `rdp.ORDERS` next to the optimum 1 + sqrt(log(1 / delta) / rho) of a Gaussian that meets the budget.

    With D_a = a rho, epsilon = rho + 2 sqrt(rho log(1 / delta)) at that order (Bun, Steinke 2016, arXiv 1605.02065).
    """
    log_inverse_delta = -math.log(budget.delta)
    root_rho = math.sqrt(budget.epsilon + log_inverse_delta) - math.sqrt(log_inverse_delta)
    optimum = 1.0 + math.sqrt(log_inverse_delta) / root_rho if root_rho > 0.0 else _MOST_ORDER
    clipped = min(max(optimum, _LEAST_ORDER), _MOST_ORDER)
    return float(rdp.ORDERS[np.abs(np.log(rdp.ORDERS - 1.0) - math.log(clipped - 1.0)).argmin()])
