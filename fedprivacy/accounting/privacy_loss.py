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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivacy.accounting.arrays import ComplexArray, FloatArray, IntArray
from fedprivacy.accounting.pairs import ROUNDING, Direction, Masses, Pairs, pair, stack_pairs
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
_MOST_MERGED = 4  # largest number of neighbouring cells that are merged
_DISCRETISED_AT_ONCE = 2**15  # grid points
_POINTS_OF_BOUNDED = 128  # the same for one execution whose loss has a largest value, an atom, that a grid blurs


@dataclass(frozen=True, eq=False)
class DiscreteLoss:
    """A dominating distribution of the privacy loss on the multiples of a grid step."""

    first: int  # index of the first grid point; its loss is `first` times the grid step
    masses: FloatArray  # P-mass of each grid point, shape [points]; sums to 1 - `infinity` up to upward rounding
    infinity: float  # P-mass of the infinite loss
    slack: float  # nats to add to epsilon for each execution, for the rounding of cell boundaries
    present: IntArray  # indices into `masses` of those that are not zero, shape [present]
    log_masses: FloatArray  # their logs, shape [present]

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
    return float(pair(event).deviations().min())


@functools.lru_cache(maxsize=1024)
def support(event: Event, direction: Direction, reach: float) -> tuple[float, float]:
    """Return the smallest and largest loss, in nats, over outcomes within `reach` standard deviations of the noise."""
    low, high = pair(event).support(reach)[:, 0].tolist()
    return (low, high) if direction is Direction.REMOVE else (-high, -low)


def points_per_deviation(bounded: ArrayLike, steps: ArrayLike) -> FloatArray:
    """Return the grid points in a standard deviation of one execution's loss; more where a loss is bounded."""
    of_bounded = np.maximum(_POINTS_PER_DEVIATION, _POINTS_OF_BOUNDED / np.sqrt(steps))
    return np.where(bounded, of_bounded, _POINTS_PER_DEVIATION)


@dataclass(frozen=True, slots=True, eq=False)
class DiscreteLosses:
    """Dominating distributions of one execution's loss on one grid, of several events and in each direction.

    The masses between losses are computed once: between a and b they are those of the other direction between -b and
    -a, with P and Q exchanged.
    """

    p: Masses
    q: Masses
    points: IntArray  # indices of the grid points between which masses are taken, increasing for each event
    firsts: IntArray  # places in `points` at which those of an event begin, shape [events]
    step: float  # grid step, in nats
    slack: FloatArray  # nats to add to epsilon for each execution, shape [events]
    _found: dict[Direction, list[DiscreteLoss]] = field(default_factory=dict)
    _merged: dict[int, DiscreteLosses] = field(default_factory=dict)

    def of(self, direction: Direction) -> list[DiscreteLoss]:
        """Return the distributions in one direction, one for each event."""
        if direction not in self._found:
            removed = direction is Direction.REMOVE
            self._found[direction] = _rounded_up(self) if removed else _rounded_up(self._mirror())[::-1]
        return self._found[direction]

    def _mirror(self) -> DiscreteLosses:
        """Return those of the other direction, the last event's first."""
        firsts = self.points.size - np.append(self.firsts[1:], self.points.size)[::-1]
        slack = self.slack[::-1]
        return DiscreteLosses(self.q.mirror(), self.p.mirror(), -self.points[::-1], firsts, self.step, slack)

    def coarsen(self, octaves: int) -> DiscreteLosses:
        """Return distributions on a coarser grid, by octaves of its step: cells that share a cell of it are merged."""
        if octaves == 0:
            return self
        if octaves not in self._merged:
            kept = np.flatnonzero(self.points % 2**octaves == 0)
            p, q = self.p.merge(kept[:-1]), self.q.merge(kept[:-1])
            points, step = self.points[kept] >> octaves, self.step * 2**octaves
            firsts = np.searchsorted(kept, self.firsts)
            self._merged[octaves] = DiscreteLosses(p, q, points, firsts, step, self.slack)
        return self._merged[octaves]


@functools.lru_cache(maxsize=256)
def discretise(event: Event, log2_step: int, reach: float) -> DiscreteLosses:
    """Compute dominating distributions of one execution's loss on a grid: `discretise_events` for one."""
    ((_, losses),) = discretise_events([event], log2_step, reach)
    return losses


def discretise_events(
    events: Sequence[Event], log2_step: int, reach: float
) -> Iterator[tuple[IntArray, DiscreteLosses]]:
    """Compute dominating distributions of one execution's loss on a grid, for several events.

    Args:
        events: the mechanisms.
        log2_step: base-2 logarithm of the grid step; a power of two keeps every grid point exact.
        reach: number of standard deviations of normal noise beyond which outcomes leave the grid.

    Yields:
        Places of events that are computed together, and their distributions.

    Raises:
        ValueError: an event's samples are cut down (`histories.untruncated`).
    """
    step = 2.0**log2_step
    for places, together in stack_pairs(events):
        low, high = together.support(reach)
        firsts = _MOST_MERGED * np.floor((np.floor(low / step) - 1.0) / _MOST_MERGED).astype(np.int64)
        lasts = _MOST_MERGED * np.ceil((np.ceil(high / step) + 1.0) / _MOST_MERGED).astype(np.int64)
        portions = (lasts - firsts).cumsum() // _DISCRETISED_AT_ONCE
        for some in np.split(np.arange(places.size), np.flatnonzero(np.diff(portions)) + 1):
            few = together.take(some) if some.size < places.size else together
            points, starts = _ends_of_cells(few, firsts[some], lasts[some], step)
            p, q, slack = few.masses(points.astype(np.float64) * step, starts)
            yield places[some], DiscreteLosses(p, q, points, starts, step, slack)


def _ends_of_cells(pairs: Pairs, firsts: IntArray, lasts: IntArray, step: float) -> tuple[IntArray, IntArray]:
    """Return the grid points between which cells lie, increasing for each pair, from its first to its last; and where
    those of each pair begin.

    They are all points, except where the loss grows so fast with the outcome of a sampled Gaussian that neighbouring
    ones are closer than the density can tell: there, cells are as wide as 2, 4, ... of the grid's.
    """
    sizes = lasts - firsts + 1
    blocks = -(-sizes // _POINTS_OF_BLOCK)
    ends = blocks.cumsum()
    starts = firsts.repeat(blocks) + _POINTS_OF_BLOCK * _count_up(blocks)
    strides = np.ones_like(starts)
    if (sizes >= _FEWEST_THINNED).any():
        cells = pairs.widths(starts.astype(np.float64) * step, ends - blocks) * _CELLS_PER_DEVIATION
        thinned = np.isfinite(cells) & (sizes >= _FEWEST_THINNED).repeat(blocks)[:-1]
        thinned[ends[:-1] - 1] = False
        narrow = np.clip(cells[thinned], 1.0, _POINTS_OF_BLOCK)
        strides[:-1][thinned] = 2 ** np.floor(np.log2(_POINTS_OF_BLOCK / narrow)).astype(np.int64)
    counts = _POINTS_OF_BLOCK // strides
    counts[ends - 1] = sizes - _POINTS_OF_BLOCK * (blocks - 1)
    points = np.asarray(starts.repeat(counts) + strides.repeat(counts) * _count_up(counts), dtype=np.int64)
    begins: IntArray = (counts.cumsum() - counts)[ends - blocks]
    return points, begins


def _count_up(lengths: IntArray) -> IntArray:
    """Count from 0 to each length, one after the other."""
    return np.arange(lengths.sum()) - (lengths.cumsum() - lengths).repeat(lengths)


def _rounded_up(losses: DiscreteLosses) -> list[DiscreteLoss]:
    """Connect the dots, rounded upwards: more mass, and more of it at the upper end of its cell, than was computed.

    Raising the mass of an atom, or moving mass to a larger loss, can only raise a hockey-stick divergence. This covers
    the rounding of the cell masses and of the cell boundaries.
    """
    p, q, points, firsts, step, slack = losses.p, losses.q, losses.points, losses.firsts, losses.step, losses.slack
    lasts = np.append(firsts[1:], points.size) - 1
    origins = points[firsts]
    sizes = points[lasts] - origins + 1
    begins = sizes.cumsum() - sizes
    places = points + (begins - origins).repeat(lasts - firsts + 1)
    # Where e^a is cut off, too little of Q is subtracted: that moves mass upwards.
    scale = np.exp(np.minimum(points[:-1] * step, _LARGEST_EXPONENT))
    scaled = scale * q.inside
    scale *= q.error
    doubt = p.inside + scaled
    doubt *= (slack + ROUNDING).repeat(lasts - firsts + 1)[:-1]
    doubt += scale
    doubt += p.error
    widths = points[1:] - points[:-1]
    widths[firsts[1:] - 1] = 1  # between two events, where the cell is empty
    falls = -np.expm1(-step * np.arange(_POINTS_OF_BLOCK + 1.0))
    with np.errstate(over="ignore"):
        upper = (p.inside - scaled + doubt) / falls[widths]
    total = p.inside + p.error
    upper = np.clip(upper, 0.0, total, out=upper)
    masses = np.zeros(int(sizes.sum()))
    masses[places[1:]] = upper
    masses[places[:-1]] += total - upper
    masses[begins] += p.below
    infinity = p.above + float(np.finfo(float).tiny)  # the latter for underflow
    ends = [0, *sizes.cumsum().tolist()]
    present = np.flatnonzero(masses)
    log_masses, borders = np.log(masses[present]), np.searchsorted(present, ends).tolist()
    return [
        DiscreteLoss(first, masses[start:end], beyond, off, present[some] - start, log_masses[some])
        for first, beyond, off, (start, end), some in zip(
            origins.tolist(),
            infinity.tolist(),
            slack.tolist(),
            itertools.pairwise(ends),
            itertools.starmap(slice, itertools.pairwise(borders)),
            strict=True,
        )
    ]


def fold(weights: FloatArray, places: IntArray, points: int) -> FloatArray:
    """Add weights up at their places modulo a period, shape [points]."""
    return np.asarray(np.bincount(places % points, weights, minlength=points), dtype=np.float64)


def transform_rows(masses: FloatArray) -> tuple[ComplexArray, FloatArray]:
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
