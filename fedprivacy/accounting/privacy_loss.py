"""The privacy loss of one execution of an event, as a distribution on a grid that is never optimistic.

The loss of outcome x is L(x) = log(P(x) / Q(x)), x drawn from P; (P, Q) is the pair that dominates the event in one
`Direction` (`pairs`). `discretise` replaces the distribution of L by one on the multiples of a grid step h that
dominates it:

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

import functools
import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING, Direction, Masses, Pair, SampledGaussian, pair
from fedprivacy.values.events import Event

_TILTS_PER_OCTAVE = 3
TILTS: FloatArray = 2.0 ** (np.arange(-21 * _TILTS_PER_OCTAVE, 3 * _TILTS_PER_OCTAVE) / _TILTS_PER_OCTAVE)
"""Arguments t of the moment generating function, times the grid step, at which `DiscreteLoss.log_mgf` is tabulated.

From 2^-17 to 2^6 over the deviation of one execution: wide enough for 1 to 10^9 executions.
"""
TILTS.setflags(write=False)

_LARGEST_EXPONENT = 700.0
_POINTS_PER_DEVIATION = 16
_CELLS_PER_DEVIATION = 32  # of the noise: cells so narrow in the outcome are enough; more in the tails of the noise
_POINTS_OF_BLOCK, _FEWEST_THINNED = 64, 2048  # grid points
_POINTS_OF_BOUNDED = 128  # the same for one execution whose loss has a largest value, an atom, that a grid blurs


@dataclass(frozen=True, eq=False)
class DiscreteLoss:
    """A dominating distribution of the privacy loss on the multiples of a grid step."""

    first: int  # index of the first grid point; its loss is `first` times the grid step
    masses: FloatArray  # P-mass of each grid point, shape [points]; sums to 1 - `infinity` up to upward rounding
    infinity: float  # P-mass of the infinite loss
    slack: float  # nats to add to epsilon for each execution, for the rounding of cell boundaries

    @functools.cached_property
    def present(self) -> IntArray:
        """Indices into `masses` of those that are not zero, shape [present]."""
        return np.flatnonzero(self.masses)

    @functools.cached_property
    def log_mgf(self) -> FloatArray:
        """Log of the sum of mass * e^(t * loss) for every t of `TILTS` / grid step, shape [tilts].

        An octave of t is the square of the one below.
        """
        masses, highest = self.masses[self.present], float(self.first + self.present[-1])
        exponents = (self.present - self.present[-1]).astype(np.float64)
        powers = np.exp(np.multiply.outer(TILTS[:_TILTS_PER_OCTAVE], exponents))
        sums = []
        for _ in range(TILTS.size // _TILTS_PER_OCTAVE):
            sums.append(powers @ masses)
            powers *= powers
        return np.asarray(TILTS * highest + np.log(np.concatenate(sums)))


@functools.lru_cache(maxsize=1024)
def deviation(event: Event) -> float:
    """Return the standard deviation of the loss under P, in nats, the smaller of both directions, to a few digits."""
    return min(pair(event).deviation(direction) for direction in Direction)


@functools.lru_cache(maxsize=1024)
def support(event: Event, direction: Direction, reach: float) -> tuple[float, float]:
    """Return the smallest and largest loss, in nats, over outcomes within `reach` standard deviations of the noise."""
    low, high = pair(event).support(reach)
    return (low, high) if direction is Direction.REMOVE else (-high, -low)


def points_per_deviation(bounded: ArrayLike, steps: ArrayLike) -> FloatArray:
    """Return the grid points in a standard deviation of one execution's loss; more where a loss is bounded."""
    of_bounded = np.maximum(_POINTS_PER_DEVIATION, _POINTS_OF_BOUNDED / np.sqrt(steps))
    return np.where(bounded, of_bounded, _POINTS_PER_DEVIATION)


@dataclass(frozen=True, slots=True, eq=False)
class DiscreteLosses:
    """Dominating distributions of one execution's loss on a grid, one for each direction, computed on demand.

    The masses between losses are computed once: between a and b they are those of the other direction between -b and
    -a, with P and Q exchanged.
    """

    p: Masses
    q: Masses
    points: IntArray  # indices of the grid points between which masses are taken, increasing
    step: float  # grid step, in nats
    slack: float  # nats to add to epsilon for each execution
    _found: dict[Direction, DiscreteLoss] = field(default_factory=dict)

    def __getitem__(self, direction: Direction) -> DiscreteLoss:
        if direction not in self._found:
            p, q, points = self.p, self.q, self.points
            if direction is Direction.ADD:
                p, q, points = q.reversed(), p.reversed(), -points[::-1]
            self._found[direction] = _rounded_up(p, q, points, self.step, self.slack)
        return self._found[direction]


@functools.lru_cache(maxsize=256)
def discretise(event: Event, log2_step: int, reach: float) -> DiscreteLosses:
    """Compute dominating distributions of one execution's loss on a grid.

    Args:
        event: the mechanism.
        log2_step: base-2 logarithm of the grid step; a power of two keeps every grid point exact.
        reach: number of standard deviations of normal noise beyond which outcomes leave the grid.

    Raises:
        ValueError: the event's samples are cut down (`histories.untruncated`).
    """
    whole, step = pair(event), 2.0**log2_step
    low, high = support(event, Direction.REMOVE, reach)
    points = _ends_of_cells(whole, math.floor(low / step) - 1, math.ceil(high / step) + 1, step)
    p, q, slack = whole.masses(points.astype(np.float64) * step)
    return DiscreteLosses(p, q, points, step, slack)


def _ends_of_cells(whole: Pair, first: int, last: int, step: float) -> IntArray:
    """Return the grid points between which cells lie, `first` and `last` included, increasing.

    They are all points, except where the loss grows so fast with the outcome of a sampled Gaussian that neighbouring
    ones are closer than the density can tell: there, cells are as wide as 2, 4, ... of the grid's.
    """
    points = np.arange(first, last + 1)
    if not isinstance(whole, SampledGaussian) or points.size < _FEWEST_THINNED:
        return points
    starts = points[::_POINTS_OF_BLOCK]
    outcomes, _ = whole.outcomes(starts.astype(np.float64) * step)
    farthest = np.abs(outcomes) + (whole.rows - 0.5) / whole.noise
    with np.errstate(invalid="ignore"):
        cells = _CELLS_PER_DEVIATION * (outcomes[1:] - outcomes[:-1]) * (1.0 + np.maximum(farthest[1:], farthest[:-1]))
    strides = 2 ** np.floor(np.log2(_POINTS_OF_BLOCK / np.clip(cells, 1.0, _POINTS_OF_BLOCK))).astype(np.int64)
    strides[~np.isfinite(cells)] = 1
    turns = np.flatnonzero(np.diff(strides)) + 1
    borders = [0, *turns.tolist(), strides.size]
    parts = [points[a * _POINTS_OF_BLOCK : b * _POINTS_OF_BLOCK : strides[a]] for a, b in itertools.pairwise(borders)]
    return np.concatenate([*parts, points[strides.size * _POINTS_OF_BLOCK :]])


def _rounded_up(p: Masses, q: Masses, points: IntArray, step: float, slack: float) -> DiscreteLoss:
    """Connect the dots, rounded upwards: more mass, and more of it at the upper end of its cell, than was computed.

    Raising the mass of an atom, or moving mass to a larger loss, can only raise a hockey-stick divergence. This covers
    the rounding of the cell masses and of the cell boundaries.
    """
    losses, places = points * step, points - points[0]
    # Where e^a is cut off, too little of Q is subtracted: that moves mass upwards.
    scale = np.exp(np.minimum(losses[:-1], _LARGEST_EXPONENT))
    scaled = scale * q.inside
    doubt = p.error + scale * q.error + (slack + ROUNDING) * (p.inside + scaled)
    with np.errstate(over="ignore"):
        upper = (p.inside - scaled + doubt) / -np.expm1(losses[:-1] - losses[1:])
    total = p.inside + p.error
    upper = np.clip(upper, 0.0, total)
    masses = np.zeros(places[-1] + 1)
    masses[places[1:]] = upper
    masses[places[:-1]] += total - upper
    masses[0] += p.below
    infinity = p.above + float(np.finfo(float).tiny)  # the latter for underflow
    return DiscreteLoss(int(points[0]), masses, infinity, slack)


def folded(weights: FloatArray, places: IntArray, points: int) -> FloatArray:
    """Add weights up at their places modulo a period, shape [points]."""
    return np.asarray(np.bincount(places % points, weights, minlength=points), dtype=np.float64)


def transformed(masses: FloatArray) -> tuple[ComplexArray, FloatArray]:
    """Compute Fourier transforms of rows at frequencies >= 0, shape [rows, points // 2 + 1], and bounds on each one's
    errors, shape [rows].

    |FFT error|_2 <= c log2(N) |FFT|_2 (Higham 2002, Theorem 24.2), and |FFT|_2 = sqrt(N) |masses|_2.
    """
    points = masses.shape[1]
    errors = ROUNDING * math.log2(points) * math.sqrt(points) * np.sqrt(np.einsum("rp,rp->r", masses, masses))
    return np.asarray(scipy.fft.rfft(masses)), errors


def hockey_stick(tilt: float, step: float, frequencies: FloatArray) -> ComplexArray:
    """Compute the transform that turns that of a loss into delta at every epsilon: never larger than at frequency 0.

    sum_{d>=1} (1 - e^(-d h)) e^(d (i w - t h)), with `tilt` t h without unit, `step` h in nats, and `frequencies` w in
    radians for each grid point, shape [frequencies].
    """
    # With E = e^(i w - t h) - 1 the sum is -(E + 1) / (E (1 - E / (e^h - 1))); Re E < 0: the last factor is accurate.
    exponent = 1j * frequencies - tilt
    one_less = np.expm1(exponent)
    return np.asarray(-np.exp(exponent) / (one_less * (1.0 + one_less * math.exp(-step) / math.expm1(-step))))
