"""The most that an attacker can find out about one record: from the whole privacy profile, not from one point of it.

An attacker who knows every other record sees all that was released and accuses a record of having been used, or not.
Two rates describe any such test: how often it accuses wrongly, and how often it finds what it looks for. A profile, all
pairs of epsilon and delta that hold together, bounds the second by the first:

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> history = {PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0): 1_000}
>>> risk = Risk.of_history(history, delta=1e-5)
>>> round(float(risk.found(0.01)), 4)  # at most, of all records that were used, if 1 % of the others are accused
0.0291
>>> round(float(Risk.of_budget(risk.epsilon, risk.delta).found(0.01)), 4)  # what epsilon at one delta says
0.0622
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from fedprivacy.accounting import pld
from fedprivacy.accounting.arrays import FloatArray
from fedprivacy.accounting.histories import check_delta
from fedprivacy.accounting.pairs import Direction
from fedprivacy.values.events import History
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import at_most_text, plural, share_text

RATES = (0.001, 0.01, 0.05)
"""Rates of false accusations at which a risk is stated."""

PRIORS = (0.5, 0.01)
"""Shares of the suspects that were used, for which it is stated how often an accusation is right."""

_WHOLE = "Computed from the whole trade-off curve of all steps, by PLD: no attack finds more."
_ONE_POINT = (
    "Computed from epsilon and delta alone, which every mechanism that keeps them satisfies: what was really done may "
    "reveal far less."
)

_ROUND_UP = 1.0 + 1e-12  # above the rounding error of an exponential of up to 700
_TINY = 1e-15  # above the rounding error of a difference from 1


@dataclass(frozen=True, slots=True, eq=False)
class Risk:
    """The most that any test for the use of one record can achieve, whatever it computes and whatever else it knows.

    Formal guarantee. Let W be the release with the record, O the one without. A test that accuses with probability a
    under O, and f under W, has f <= e^epsilon a + delta at every pair of the profile of W against O, and f <= 1 -
    e^-epsilon (1 - delta - a) at every pair of that of O against W (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015).
    The least of all these bounds is the trade-off function (Dong, Roth, Su 2022). `found` is the larger of it and of
    that of the test which looks for records that were not used; every profile and every sum is rounded upwards.

    Attributes:
        epsilon: upper bound on the privacy loss at `delta`, in nats, >= 0, maybe infinite.
        delta: in [0, 1).
        profiles: for each direction epsilons, maybe infinite, and deltas, shape [points]; see `pld.profiles`.
        whole: whether the profiles are those of mechanisms, and not the one point (epsilon, delta).
    """

    epsilon: float
    delta: float
    profiles: Mapping[Direction, tuple[FloatArray, FloatArray]]
    whole: bool

    @classmethod
    def of_history(cls, history: History, delta: float) -> Self:
        """Return the risk after the mechanisms of `history`, from the profile of all of them together.

        Args:
            history: number of executions of each event, under one neighbouring relation; for a person with several
                rows, that of `histories.person_history`.
            delta: probability in (0, 1) at which `epsilon` is stated.

        Raises:
            ValueError: delta is outside (0, 1), or the history mixes neighbouring relations.
        """
        return cls(pld.epsilon(history, delta), delta, pld.profiles(history), whole=True)

    @classmethod
    def of_budget(cls, epsilon: float, delta: float) -> Self:
        """Return the risk of any mechanism that is (epsilon, delta)-differentially private. No smaller one holds.

        Args:
            epsilon: in nats, >= 0, maybe infinite.
            delta: probability in (0, 1).

        Raises:
            ValueError: an argument is out of range.
        """
        if not epsilon >= 0.0:
            raise ValueError(f"epsilon is {epsilon}; choose a number of at least 0.")
        return cls(epsilon, check_delta(delta), {}, whole=False)

    def found(self, rates: ArrayLike) -> FloatArray:
        """Return the largest share of used records that a test finds, by its rate of false accusations.

        Args:
            rates: shares of the other records that it accuses wrongly, each in [0, 1], any shape.

        Returns:
            Rates in [0, 1], the same shape.
        """
        wrong = np.asarray(rates, dtype=np.float64)
        raising, sparing = {}, {}
        for direction in Direction:
            epsilons, deltas = self._pairs(direction)
            with np.errstate(over="ignore", invalid="ignore"):
                raised = np.nan_to_num(wrong[..., None] * np.exp(epsilons), nan=0.0)  # 0 times infinity
            raising[direction] = (raised + deltas).min(axis=-1)
            spared = np.exp(-epsilons) * (1.0 - deltas - wrong[..., None])
            sparing[direction] = 1.0 - spared.max(axis=-1)
        of_used = np.minimum(raising[Direction.REMOVE], sparing[Direction.ADD])
        of_others = np.minimum(raising[Direction.ADD], sparing[Direction.REMOVE])
        return np.asarray(np.clip(np.maximum(of_used, of_others) * _ROUND_UP + _TINY, wrong, 1.0))

    @property
    def advantage(self) -> float:
        """Largest difference between the share that a test finds and the share that it accuses wrongly, in [0, 1]."""
        bounds = [np.min(1.0 - (1.0 - deltas) * np.exp(-eps)) for eps, deltas in map(self._pairs, Direction)]
        both = math.tanh(self.epsilon / 2.0)  # one pair that holds in both directions: Kairouz, Oh, Viswanath 2015
        least = min(*map(float, bounds), both + self.delta * (1.0 - both))
        return min(1.0, least * _ROUND_UP + _TINY)

    def right(self, rate: float, prior: float) -> float:
        """Return the largest probability with which an accusation is right.

        Args:
            rate: share of the other records that the test accuses wrongly, in (0, 1].
            prior: share of the suspects that were used, in [0, 1].
        """
        hit = prior * float(self.found(rate))
        return min(1.0, hit / (hit + (1.0 - prior) * rate) * _ROUND_UP)

    def sentence(self, rate: float = 0.01, unit: str = RECORD.name) -> str:
        """Say what a test finds, for people.

        Args:
            rate: share of the others that it accuses wrongly, in [0, 1].
            unit: name of the unit of privacy.
        """
        return sentence_of(rate, float(self.found(rate)), unit)

    @property
    def basis(self) -> str:
        """The source of the risk, in a sentence for people: the whole curve, or one point of it."""
        return _WHOLE if self.whole else _ONE_POINT

    def _pairs(self, direction: Direction) -> tuple[FloatArray, FloatArray]:
        """Return the direction's profile, with the pair that is stated."""
        epsilons, deltas = self.profiles.get(direction, (np.zeros(0), np.zeros(0)))
        return np.append(epsilons, self.epsilon), np.append(deltas, self.delta)


def sentence_of(rate: float, found: float, unit: str) -> str:
    """Say for people what a test finds at most that wrongly accuses a share of the units that were not used."""
    return (
        f"An attacker who wrongly accuses {share_text(rate)} of the {plural(unit)} that were not used finds at most "
        f"{at_most_text(found)} of those that were."
    )
