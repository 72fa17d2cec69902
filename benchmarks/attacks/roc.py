"""How well scores tell members from others: the receiver operating characteristic (ROC).

Membership attacks are judged where false alarms are few (Carlini et al. 2022): an attacker who is nearly always right
about a few records has found something, although the area under the curve may be close to one half.

>>> roc = Roc.of(members=[3.0, 2.0, 1.0], others=[1.0, 0.0])
>>> roc.true_positive_rates
array([0.        , 0.33333333, 0.66666667, 1.        , 1.        ])
>>> roc.area, roc.at(0.1).true_positive_rate
(0.9166666666666666, 0.6666666666666666)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv


@dataclass(frozen=True, slots=True)
class Rate:
    """How many members an attack finds at a threshold, with a two-sided confidence interval.

    Attributes:
        true_positive_rate: share of the members that are found.
        false_positive_rate: share of the others that are taken for members.
        low: lower end of the interval of the true positive rate (Clopper and Pearson 1934).
        high: its upper end.
    """

    true_positive_rate: float
    false_positive_rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """Counts of found members and of false alarms as the threshold falls, from nobody to everybody.

    Records with the same score are taken together: no threshold lies between them.

    Attributes:
        true_positives: members at or above each threshold, never decreasing, shape [thresholds + 1], 0 first.
        false_positives: others at or above it, the same shape.
    """

    true_positives: NDArray[np.int64]
    false_positives: NDArray[np.int64]

    @classmethod
    def of(cls, members: ArrayLike, others: ArrayLike) -> Self:
        """The curve of an attack that calls the highest scores members.

        Args:
            members: their scores, of any shape; at least one.
            others: the scores of records that are none; at least one.

        Raises:
            ValueError: one of the groups is empty, or a score is not a number.
        """
        inside, outside = (np.asarray(scores, dtype=np.float64).ravel() for scores in (members, others))
        if not len(inside) or not len(outside):
            raise ValueError(f"there are {len(inside)} members and {len(outside)} others; an attack needs both.")
        scores = np.concatenate([inside, outside])
        if np.isnan(scores).any():
            raise ValueError("a score is not a number; the attacked model's outputs must be finite.")
        order = np.argsort(-scores, kind="stable")
        last_of_equals = np.flatnonzero(np.append(np.diff(scores[order]) != 0.0, True))
        found = np.cumsum(order < len(inside))[last_of_equals]
        return cls(np.append(0, found), np.append(0, last_of_equals + 1 - found))

    @property
    def members(self) -> int:
        """How many members were attacked."""
        return int(self.true_positives[-1])

    @property
    def others(self) -> int:
        """How many records were attacked that are none."""
        return int(self.false_positives[-1])

    @property
    def true_positive_rates(self) -> NDArray[np.float64]:
        """Share of the members at or above each threshold, shape [thresholds + 1]."""
        return self.true_positives / self.members

    @property
    def false_positive_rates(self) -> NDArray[np.float64]:
        """Share of the others at or above it, the same shape."""
        return self.false_positives / self.others

    @property
    def area(self) -> float:
        """Area under the curve: how likely a member scores above another record, ties counting half."""
        twice = np.diff(self.false_positives) @ (self.true_positives[1:] + self.true_positives[:-1])
        return int(twice) / (2 * self.members * self.others)

    def at(self, false_positive_rate: float, confidence: float = 0.95) -> Rate:
        """The most members found without more false alarms than that; nothing is interpolated.

        The interval takes the records as independent and the threshold as given.

        Args:
            false_positive_rate: in [0, 1].
            confidence: of the interval, in (0, 1).
        """
        allowed = self.false_positives <= false_positive_rate * self.others
        place = int(np.flatnonzero(allowed)[-1])
        found = int(self.true_positives[place])
        low, high = clopper_pearson(found, self.members, confidence)
        return Rate(found / self.members, float(self.false_positive_rates[place]), low, high)


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Both ends of the exact interval of a probability (Clopper and Pearson 1934)."""
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, tail))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1.0 - tail))
    return low, high
