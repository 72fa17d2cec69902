"""Root finding for many clients at once."""

from __future__ import annotations

import math

import numpy as np

from fedprivacy.accounting.arrays import BoolArray, FloatArray, IntArray

_FINEST = 1e-9  # distance of two x below which they count as equal
_LONGEST_MOVE = math.log(4.0)


class Search:
    """One search for each client, for the least x at which epsilon, falling in x, fits.

    Attributes:
        at: where each search is; x is the logarithm of a noise multiplier, or minus that of a number of steps.
        enough: least x known to fit.
        too_little: largest x known not to fit.
    """

    def __init__(
        self,
        at: FloatArray,
        slope: FloatArray,
        low: float,
        high: float,
    ) -> None:
        self._low, self._high = low, high
        self.at = np.clip(at, low, high)
        self.enough, self.too_little = np.full(at.shape, np.inf), np.full(at.shape, -np.inf)
        self._slope = slope
        self._before, self._excess = np.full(at.shape, np.nan), np.full(at.shape, np.nan)

    def bracket(self, clients: IntArray, fits: BoolArray) -> BoolArray:
        """Note which trials fit. Returns which brackets are as narrow as may be."""
        at = self.at[clients]
        self.enough[clients] = np.where(fits, np.minimum(self.enough[clients], at), self.enough[clients])
        self.too_little[clients] = np.where(fits, self.too_little[clients], np.maximum(self.too_little[clients], at))
        return np.asarray(self.enough[clients] - self.too_little[clients] < _FINEST)

    def ends(self, clients: IntArray) -> tuple[BoolArray, BoolArray]:
        """Where even the highest x does not fit, and where even the lowest does; shape of `clients`."""
        return self.too_little[clients] >= self._high, self.enough[clients] <= self._low

    def learn(self, clients: IntArray, excess: FloatArray) -> None:
        """Move to where a line through this trial and the one before has no excess."""
        at = self.at[clients]
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = (excess - self._excess[clients]) / (at - self._before[clients])
        usual = (secant < -0.05) & (secant > -200.0)
        slope = np.where(usual, secant, self._slope[clients])
        self._slope[clients], self._before[clients], self._excess[clients] = slope, at, excess
        move = np.clip(-excess / slope, -_LONGEST_MOVE, _LONGEST_MOVE)
        self.at[clients] = np.clip(at + move, self._low, self._high)

    def stay_inside(self, clients: IntArray, *, halve: bool) -> None:
        """Move to the middle of the brackets, where they are left or `halve` says so."""
        at, low, high = self.at[clients], self.too_little[clients], self.enough[clients]
        outside = (at <= low) | (at >= high) | halve
        bounded = np.isfinite(low) & np.isfinite(high)
        self.at[clients] = np.where(bounded & outside, 0.5 * (low + high), at)
