"""Independent answers: closed forms, and quadrature of the characteristic function.

Nothing here shares code with `fedprivacy.accounting`.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedprivacy.accounting.privacy_loss import DiscreteLoss
from fedprivacy.values.events import Event, History


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Exact epsilon of N(mu, 1) against N(0, 1) (Balle, Wang 2018, Theorem 8)."""

    def log_delta(epsilon: float) -> float:
        first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(first + np.log1p(-np.exp(min(second - first, 0.0))))

    if log_delta(0.0) <= math.log(delta):
        return 0.0
    return float(brentq(lambda e: log_delta(e) - math.log(delta), 0.0, mu**2 + 80 * mu + 1, xtol=1e-13, rtol=1e-13))


def gaussian_profile(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """Exact delta of the same at any real epsilon (Balle, Wang 2018)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_delta(mu: float | mpmath.mpf, epsilon: float, digits: int = 50) -> mpmath.mpf:
    """Exact delta of the same, to so many digits."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def single_step_delta(event: Event, epsilon: float, remove: bool) -> float:
    """Exact delta of one execution, by the outcomes at which the loss exceeds epsilon."""
    q, s = event.sampling_rate, event.noise_multiplier
    argument = math.expm1(epsilon if remove else -epsilon) / q
    if argument <= -1.0:
        return 0.0
    x = s**2 * math.log1p(argument) + 0.5
    if remove:
        return float((1 - q) * ndtr(-x / s) + q * ndtr((1 - x) / s) - math.exp(epsilon) * ndtr(-x / s))
    return float(ndtr(x / s) - math.exp(epsilon) * ((1 - q) * ndtr(x / s) + q * ndtr((x - 1) / s)))


def single_step_epsilon(event: Event, delta: float) -> float:
    """Exact epsilon of one execution, both directions."""
    worst = 0.0
    for remove in (True, False):
        if single_step_delta(event, 0.0, remove) > delta:
            root = brentq(lambda e, r=remove: single_step_delta(event, e, r) - delta, 0.0, 300.0, xtol=1e-13)
            worst = max(worst, float(root))
    return worst


def composed_delta(history: History, epsilon: float, remove: bool) -> float:
    """Delta of a composition by Laplace inversion of its moment generating function, both by the trapezoid rule.

    (1 / 2 pi) int M(z) e^(-z eps) / (z (z + 1)) dt on z = lambda + i t; the discretised integral over-estimates, here
    by about e^-500 relative to the integrand's scale. It also holds where delta is far below 1e-16; below 1e-100, the
    answer is 0.
    """

    def log_mgf(z: np.ndarray) -> np.ndarray:
        total = np.zeros(z.shape, dtype=complex)
        for event, count in history.items():
            q, s, rows = event.sampling_rate, event.noise_multiplier, getattr(event, "rows_per_person", 1)
            power = 1 + z if remove else -z
            t = np.arange(-14.0, max(float(power.real.max()), 0.0) * rows / s + 14.0, 0.01)
            ratio = t / s - 0.5 / s**2
            near = np.log1p(q * np.expm1(np.minimum(ratio, 1.0)))
            far = np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, math.log(q) + ratio)
            loss = np.where(ratio < 1.0, near, far) if q < 1 else ratio
            if rows > 1:
                j = np.arange(rows + 1.0)[:, None]
                loss = np.logaddexp.reduce(stats.binom.logpmf(j, rows, q) + j * t / s - 0.5 * (j / s) ** 2)
            exponent = power[:, None] * loss - t**2 / 2
            shift = exponent.real.max(axis=1)
            total += count * (
                shift + np.log(np.exp(exponent - shift[:, None]).sum(axis=1) * 0.01 / math.sqrt(2 * np.pi))
            )
        return total

    tilts = np.geomspace(1e-3, 2e3, 200)
    scale = [float(log_mgf(np.array([t + 0j])).real[0]) - t * epsilon - math.log(t * (1 + t)) for t in tilts]
    if min(scale) < math.log(1e-100):
        return 0.0
    tilt = float(tilts[int(np.argmin(scale))])
    base = float(log_mgf(np.array([tilt + 0j])).real[0]) - tilt * epsilon
    spacing, total, start = 2 * np.pi * tilt / 500.0, 0.0, 0
    while True:
        index = np.arange(start, start + 64)
        z = tilt + 1j * spacing * index
        values = np.exp(log_mgf(z) - z * epsilon - base) / (z * (z + 1))
        total += float((values.real * np.where(index == 0, 1.0, 2.0)).sum())
        start += 64
        if abs(values[-1]) < 1e-14 / abs(tilt * (tilt + 1)) or start >= 20_000:
            return math.exp(base + math.log(total * spacing / (2 * np.pi)))


def exact_share(history: History, epsilon: float, delta: float) -> float:
    """Exact delta at `epsilon`, over the delta asked for: 1 if the epsilon is exact, above 1 if it is unsound."""
    return max(composed_delta(history, epsilon, remove) for remove in (True, False)) / delta


def discrete_delta(loss: DiscreteLoss, step: float, epsilon: float) -> float:
    """Delta of a discretised loss on a grid of this step."""
    losses = (loss.first + np.arange(loss.masses.size)) * step
    return loss.infinity + float(loss.masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
