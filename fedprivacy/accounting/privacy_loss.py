"""The privacy loss of one execution of an event, as a distribution on a grid that is never optimistic.

The loss of outcome x is L(x) = log(P(x) / Q(x)), x drawn from P; (P, Q) is the pair that dominates the event in one
`Direction`. `discretise` replaces the distribution of L by one on the multiples of a grid step h that dominates it:

- Cells inside the grid. A cell (a, b] of losses, b = a + h, with masses m_P and m_Q becomes two atoms, at a and at b,
  that keep both masses ("connect the dots", Doroshenko et al. 2022, arXiv 2207.04380; here on interval masses, which
  keep their relative precision in the tails): at b the mass (m_P - e^a m_Q) / (1 - e^-h), at a the rest. A hockey-stick
  divergence is the mean under Q of the convex function r -> max(r - e^eps, 0) of r = P / Q, and spreading r to the
  ends of its cell at equal mean cannot lower the mean of a convex function.
- Left of the grid. The mass moves up to the first grid point.
- Right of the grid. The mass moves to an infinite loss.

Formal guarantee. The returned distribution, with P-masses and the infinity mass rounded up as computed in floating
point, dominates L shifted down by `DiscreteLoss.slack`, and domination survives composition (Zhu, Dong, Wang 2022,
arXiv 2106.08567, Theorem 10): an epsilon read from a composition, plus the sum of the slacks, is an upper bound.
"""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedprivacy.events import Event

FloatArray = NDArray[np.float64]

# Every bound on a rounding error below is a small number of units in the last place, times this: the elementary
# functions used err by at most 2 units and no expression chains more than 4 of them.
ROUNDING = 8.0 * 2.0**-53

_TILTS_PER_OCTAVE = 3
TILTS: FloatArray = 2.0 ** (np.arange(-21 * _TILTS_PER_OCTAVE, 3 * _TILTS_PER_OCTAVE) / _TILTS_PER_OCTAVE)
"""Arguments t of the moment generating function, times the grid step, at which `DiscreteLoss.log_mgf` is tabulated.

From 2^-17 to 2^6 over the deviation of one execution: wide enough for 1 to 10^9 executions."""
TILTS.setflags(write=False)

_FARTHEST = 40.0  # standard deviations; the normal tail beyond is below the smallest floating-point number


class Direction(enum.Enum):
    """Which of the two neighbouring shards holds the record."""

    REMOVE = "remove"
    """P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2)."""
    ADD = "add"
    """P = N(0, s^2), Q = (1 - q) N(0, s^2) + q N(1, s^2)."""


@dataclass(frozen=True, slots=True, eq=False)
class DiscreteLoss:
    """A dominating distribution of the privacy loss on the multiples of a grid step.

    Attributes:
        first: index of the first grid point; its loss is `first` times the grid step.
        masses: P-mass of each grid point, shape [points]; sums to 1 - `infinity` up to upward rounding.
        log_mgf: log of the sum of mass * e^(t * loss) for every t of `TILTS` / grid step, shape [tilts].
        infinity: P-mass of the infinite loss.
        slack: nats to add to epsilon for each execution, for the rounding of cell boundaries.
    """

    first: int
    masses: FloatArray
    log_mgf: FloatArray
    infinity: float
    slack: float


@functools.lru_cache(maxsize=1024)
def deviation(event: Event, direction: Direction) -> float:
    """Standard deviation of the loss under P, in nats (to a few digits: it only sets the grid)."""
    noise = event.noise_multiplier
    z = np.linspace(-9.0, 9.0, 721)
    density = np.exp(-0.5 * z**2)
    weights, x = density, z * noise
    if direction is Direction.REMOVE:
        weights = np.concatenate([(1.0 - event.sampling_rate) * density, event.sampling_rate * density])
        x = np.concatenate([x, x + 1.0])
    losses = _mixture_loss(event, x)
    weights = weights / weights.sum()
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(weights @ (losses - weights @ losses) ** 2))


def support(event: Event, direction: Direction, reach: float) -> tuple[float, float]:
    """Smallest and largest loss, in nats, over outcomes within `reach` standard deviations of the noise."""
    spread = reach * event.noise_multiplier
    furthest = 1.0 + spread if direction is Direction.REMOVE else spread
    low, high = _mixture_loss(event, np.array([-spread, furthest]))
    return (float(low), float(high)) if direction is Direction.REMOVE else (float(-high), float(-low))


@functools.lru_cache(maxsize=1024)
def discretise(event: Event, direction: Direction, log2_step: int, reach: float) -> DiscreteLoss:
    """Dominating distribution of one execution's loss on a grid.

    Args:
        event: the mechanism.
        direction: which shard holds the record.
        log2_step: base-2 logarithm of the grid step; a power of two keeps every grid point exact.
        reach: outcomes farther out than this many standard deviations of the noise leave the grid.
    """
    step = 2.0**log2_step
    low, high = support(event, direction, reach)
    first, last = math.floor(low / step) - 1, math.ceil(high / step) + 1
    losses = np.arange(first, last + 1, dtype=np.float64) * step
    mixture_losses = losses if direction is Direction.REMOVE else -losses[::-1]
    z_base, z_shifted, slack = _outcomes(event, mixture_losses)
    offset = 0.5 / event.noise_multiplier
    base, shifted = _IntervalMasses.of(z_base, offset), _IntervalMasses.of(z_shifted, offset)
    mixture = base.mixed_with(shifted, event.sampling_rate)
    if direction is Direction.REMOVE:
        p, q = mixture, base
    else:
        p, q = base.reversed(), mixture.reversed()
    masses = _connect_the_dots(p, q, losses, slack)
    infinity = p.above + float(np.finfo(float).tiny)  # the latter for what ended below the smallest number
    return DiscreteLoss(first, masses, _log_mgf(masses, losses / step), infinity, slack)


def _mixture_loss(event: Event, x: FloatArray) -> FloatArray:
    """log(((1 - q) N(x; 0, s^2) + q N(x; 1, s^2)) / N(x; 0, s^2))."""
    q, noise = np.float64(event.sampling_rate), np.float64(event.noise_multiplier)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_ratio = (2.0 * x - 1.0) / (2.0 * noise**2)
        near = np.log1p(q * np.expm1(np.minimum(log_ratio, 1.0)))
        far = np.logaddexp(np.log1p(-q), np.log(q) + log_ratio)
    return log_ratio if q == 1.0 else np.where(log_ratio < 1.0, near, far)


def _outcomes(event: Event, losses: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """The outcomes at which the mixture's loss takes the given values, standardised for either component.

    Returns:
        z of N(0, s^2), shape [losses]; z of N(1, s^2), shape [losses]; and a bound, in nats, on how far the exact loss
        at a returned outcome lies from the wanted one. The inverse loses digits where the loss is flat, but there
        the loss hardly moves: the error in the loss, not in the outcome, stays at the rounding level. `near` would
        lose it all the same for large negative losses, which only occur with q close to 1: its error is multiplied by
        q e^-l; `far` has an error of about (1 + |l|) roundings on either side.
    """
    q, noise = event.sampling_rate, event.noise_multiplier
    small = np.abs(losses) < 1.0
    with np.errstate(divide="ignore", over="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.where(small, losses, 0.0)) / q, -1.0))
        beyond = np.where(small, 1.0, losses)
        far = beyond + np.log1p(np.maximum((q - 1.0) * np.exp(-beyond), -1.0)) - np.log(q)
        log_ratio = losses if q == 1.0 else np.where(small, near, far)
    z_base = np.clip(noise * log_ratio + 0.5 / noise, -_FARTHEST, _FARTHEST)
    z_shifted = np.clip(noise * log_ratio - 0.5 / noise, -_FARTHEST, _FARTHEST)
    slack = ROUNDING * (1.0 + np.abs(losses).max() - np.log(q) + (1.0 / noise) ** 2)
    return z_base, z_shifted, float(slack)


@dataclass(frozen=True, slots=True, eq=False)
class _IntervalMasses:
    """Masses between consecutive thresholds and beyond the outer two, with bounds on their rounding errors."""

    below: float
    inside: FloatArray
    above: float
    error: FloatArray

    @classmethod
    def of(cls, z: FloatArray, offset: float) -> _IntervalMasses:
        """Of the standard normal distribution at increasing thresholds z, each the result of adding +-`offset`."""
        lower, upper = ndtr(z), ndtr(-z)
        right = z[:-1] > 0.0
        inside = np.where(right, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
        edge = np.where(right, upper[:-1], lower[1:])  # the larger of the two numbers that were subtracted
        # An error of e (|z| + offset) in z changes the tail by at most (1 + |z|) e (|z| + offset) of itself.
        distance = 1.0 + np.maximum(np.abs(z[:-1]), np.abs(z[1:]))
        error = 2.0 * ROUNDING * distance * (distance + offset) * edge
        growth = 1.0 + ROUNDING * (1.0 + _FARTHEST) * (1.0 + _FARTHEST + offset)
        return cls(float(lower[0]) * growth, np.maximum(inside, 0.0), float(upper[-1]) * growth, error)

    def mixed_with(self, other: _IntervalMasses, weight: float) -> _IntervalMasses:
        """(1 - weight) of these and `weight` of the others."""
        return _IntervalMasses(
            (1.0 - weight) * self.below + weight * other.below,
            (1.0 - weight) * self.inside + weight * other.inside,
            (1.0 - weight) * self.above + weight * other.above,
            (1.0 - weight) * self.error + weight * other.error,
        )

    def reversed(self) -> _IntervalMasses:
        """Of the mirrored variable."""
        return _IntervalMasses(self.above, self.inside[::-1], self.below, self.error[::-1])


def _connect_the_dots(p: _IntervalMasses, q: _IntervalMasses, losses: FloatArray, slack: float) -> FloatArray:
    """P-masses at the grid points, shape [losses]; more mass, and more of it at the upper end, than was computed.

    Raising the mass of an atom, or moving mass to a larger loss, can only raise a hockey-stick divergence: that is how
    the rounding of the cell masses and of the cell boundaries is paid for.
    """
    below = losses[:-1]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scale = np.exp(below)
        excess = p.inside - scale * q.inside
        doubt = p.error + scale * q.error + (slack + ROUNDING) * (p.inside + scale * q.inside)
        upper = (excess + doubt) / -np.expm1(-(losses[1:] - below))
    total = p.inside + p.error
    upper = np.clip(np.where(np.isfinite(upper), upper, total), 0.0, total)
    masses = np.zeros(losses.shape)
    masses[1:] += upper
    masses[:-1] += total - upper
    masses[0] += p.below
    return masses


def _log_mgf(masses: FloatArray, indices: FloatArray) -> FloatArray:
    """log sum_i masses_i e^(t i) for every t of `TILTS`, shape [tilts]; an octave is the square of the one below."""
    present = masses > 0.0
    highest = indices[present][-1]
    powers = np.exp(np.multiply.outer(TILTS[:_TILTS_PER_OCTAVE], indices[present] - highest))
    sums = []
    for _ in range(TILTS.size // _TILTS_PER_OCTAVE):
        sums.append(powers @ masses[present])
        powers *= powers
    return np.asarray(TILTS * highest + np.log(np.concatenate(sums)))
