"""Epsilon from readings of single steps, by the accountant (the white-box attack of Nasr et al. 2023).

The server sees every step (arXiv 2302.07956). A reading is what a release holds along a direction that the auditor
chose, over the clipping norm. Where k canaries of that direction joined the step, the mechanism promises

    y = b k + noise,    noise ~ N(0, s^2),    b <= 1,    s = noise multiplier,

so one record moves a reading by mu = b / s deviations. From all readings comes a lower bound on mu, and from it, by the
accountant, on the epsilon of T steps with sampling rate q: a record whose gradient has that length and direction in
every step makes exactly the releases of the Poisson-sampled Gaussian with noise 1 / mu.

The bound on mu is exact. Regressing y on k, with a constant, the slope's t has a noncentral t distribution with n - 2
degrees of freedom and noncentrality mu sqrt(S), S the sum of squares of k about its mean (for k = 0, 1 it is the
two-sample t of readings with the canary against readings without it). The bound is the noncentrality under which so
large a t has probability 1 - confidence. Who joined is the sampler's doing and independent of the noise, so the k are
fixed numbers here.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammainccinv, gammaincinv, ndtr, ndtri

from fedprivacy.accounting import pld
from fedprivacy.audit.bounds.checks import check_confidence
from fedprivacy.values.events import PoissonSampledGaussian

_NO_NOISE = 1e-12  # share of the sum of squares that rounding may leave


def _rule() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of Gauss's rule on (0, 1/2), in panels: dense where probabilities are small."""
    ends = np.array([0.0, *10.0 ** np.arange(-12.0, 0.0), 0.5])
    nodes, weights = leggauss(24)
    halves = 0.5 * np.diff(ends)[:, None]
    return (ends[:-1, None] + halves * (1.0 + nodes)).ravel(), (halves * weights).ravel()


_CHANCES, _WEIGHTS = _rule()


@dataclass(frozen=True, slots=True)
class Readings:
    """Sums over readings y and over how many canaries k each holds; those of several steps are added.

    Attributes:
        number: n.
        canaries: sum of k.
        canaries_squared: sum of k^2.
        values: sum of y.
        values_squared: sum of y^2.
        products: sum of k y.
    """

    number: int = 0
    canaries: float = 0.0
    canaries_squared: float = 0.0
    values: float = 0.0
    values_squared: float = 0.0
    products: float = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float64], canaries: NDArray[np.float64]) -> Readings:
        """Return statistics of readings and of the signed count of canaries that joined each; both of shape [readings].

        Raises:
            ValueError: a reading is not finite.
        """
        if not np.isfinite(values).all():
            raise ValueError("A reading is not finite: what was released cannot be read.")
        return cls(
            values.size,
            float(canaries.sum()),
            float(canaries @ canaries),
            float(values.sum()),
            float(values @ values),
            float(canaries @ values),
        )

    def __add__(self, other: Readings) -> Readings:
        return Readings(
            self.number + other.number,
            self.canaries + other.canaries,
            self.canaries_squared + other.canaries_squared,
            self.values + other.values,
            self.values_squared + other.values_squared,
            self.products + other.products,
        )

    @property
    def spread(self) -> float:
        """S, the sum of squares of k about its mean."""
        return self.canaries_squared - self.canaries**2 / max(self.number, 1)

    @property
    def slope(self) -> float:
        """Movement of a reading by a canary that joined: least squares, in clipping norms; 0 if k never varies."""
        return (self.products - self.canaries * self.values / self.number) / self.spread if self.spread > 0.0 else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in clipping norms; 0 where only rounding is left."""
        whole = self.values_squared - self.values**2 / self.number
        left = whole - self.slope**2 * self.spread
        return math.sqrt(left / (self.number - 2)) if left > _NO_NOISE * self.values_squared else 0.0


def least_shift(readings: Readings, confidence: float) -> float:
    """Lower bound on mu, by how many deviations of the noise one record moves a release.

    Formal guarantee: where the readings are as the module says, it exceeds mu with probability 1 - confidence.

    Returns:
        mu >= 0; 0 for fewer than three readings, and infinite where there is no noise at all.
    """
    check_confidence(confidence)
    if readings.number < 3 or readings.slope <= 0.0:
        return 0.0
    if readings.deviation == 0.0:
        return math.inf
    root = math.sqrt(readings.spread)
    t = readings.slope * root / readings.deviation
    return max(0.0, least_noncentrality(t, readings.number - 2, confidence)) / root


def least_noncentrality(t: float, degrees: int, confidence: float) -> float:
    """The noncentrality under which a noncentral t exceeds `t` with probability 1 - confidence.

    Solves E[Phi(t sqrt(V / degrees) - noncentrality)] = confidence, V chi-square, by Gauss's rule over quantiles of V.
    (scipy's own function has no value for the noncentralities of readings with little noise.)

    Args:
        t: positive.
        degrees: of freedom, at least 1.
        confidence: probability in (0, 1).
    """
    below, above = gammaincinv(0.5 * degrees, _CHANCES), gammainccinv(0.5 * degrees, _CHANCES)
    roots = t * np.sqrt(np.stack([below, above]) / (0.5 * degrees))
    far = 1.0 - float(ndtri(0.5 * min(confidence, 1.0 - confidence)))

    def excess(noncentrality: float) -> float:
        return float((ndtr(roots - noncentrality) @ _WEIGHTS).sum()) - confidence

    return float(brentq(excess, roots.min() - far, roots.max() + far, xtol=1e-10 * max(t, 1.0)))


def epsilon(mu: float, event: PoissonSampledGaussian, steps: int, delta: float) -> float:
    """The epsilon, at `delta`, of so many steps in which one record moves a release by `mu` deviations.

    It is `pld.epsilon`, of the accountant that states the upper bound: the two are in order whenever the noises are.

    Assumptions: the noise is Gaussian and independent from step to step, and records join with the event's sampling
    rate, independently.

    Args:
        mu: >= 0, may be infinite.
        event: of each step; its own noise multiplier is not believed.
        steps: how often it is executed.
        delta: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; infinite where there is no noise at all.
    """
    if mu <= 1.0 / sys.float_info.max:
        return 0.0
    if math.isinf(mu):
        return math.inf
    noisy = PoissonSampledGaussian(event.sampling_rate, event.sensitivity / mu, event.relation)
    return pld.epsilon({noisy: steps}, delta)
