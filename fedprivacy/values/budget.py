"""Privacy budgets, and the terms under which a data owner allows them."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """Maximum privacy loss that a data owner allows over all runs on a dataset: (epsilon, delta)-differential privacy.

    >>> import fedprivacy as fp
    >>> fp.PrivacyBudget(epsilon=3.0, delta=1e-5).enforced
    True

    Attributes:
        epsilon: bound on the privacy loss, in nats, > 0 (infinite: measure, never stop).
        delta: probability with which the bound may fail, in (0, 1).

    Raises:
        ValueError: one of them is out of range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0.0:
            raise ValueError(f"epsilon is {self.epsilon}; choose a positive number.")
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta is {self.delta}; choose a probability in (0, 1), well below 1 / shard size.")

    @property
    def enforced(self) -> bool:
        """True if the budget can be exhausted (epsilon is finite)."""
        return math.isfinite(self.epsilon)


@dataclass(frozen=True, slots=True)
class Allowance:
    """A data owner's terms for a dataset: a budget and the filter that enforces it."""

    budget: PrivacyBudget  # over all runs on the dataset
    filter: str  # name of the filter, see `fedprivacy.accounting.FILTERS`
    # The ledger grants nothing from then on; None: never. A client's guard keeps no such date.
    expires: datetime.datetime | None = None
    deliberate: bool = False  # set in the ledger by an explicit act, which rules over what a run asks for

    @property
    def expired(self) -> bool:
        """True if the expiry date has passed and nothing may be granted any more."""
        return self.expires is not None and datetime.datetime.now(datetime.UTC) >= self.expires
