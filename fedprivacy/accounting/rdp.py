"""Rényi differential privacy (RDP) of events: the moments accountant.

RDP composes by addition, which makes it the fast first answer, the bracket of the calibration, and the currency of
the adaptive filter. It is a bound, not the privacy loss itself: at the same delta, `fedprivacy.accounting.pld` is
tighter, by much when few steps were taken.

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> epsilon({PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}, delta=1e-5) < 1.05
True

Formal guarantee. With P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2), both D_a(P || Q) and D_a(Q || P) are at
most log(A_a) / (a - 1), A_a = E_Q[(P / Q)^a]: the direction that removes a record dominates the one that adds it
(Mironov, Talwar, Zhang 2019, arXiv 1908.10530, Theorem 5 and Corollary 7). One number therefore covers both.

The code computes A_a - 1, never A_a: for a small sampling rate A_a - 1 is of order q^2, far below the spacing of the
floating-point numbers around 1.

The other mechanisms: Laplace noise has closed forms for the powers of e^loss without sampling and, by the binomial sum,
at whole orders with sampling (the theorem above asks only that a reflection exchanges the two components); other orders
lie below the chord, a -> log(A_a) being convex. Randomised response has a closed form. For samples of fixed size the
divergence of the pair of `pairs.SubsampledGaussian` is at most log(1 + 2 (A_a - 1)) / (a - 1), A_a that of Poisson
sampling with sensitivity 2 C: A_a - 1 is the mean of a function of P / Q that is never negative and is 0 at P = Q, and
each half of that pair has at most the whole mean of its parent. This is never above the bound of Wang, Balle,
Kasiviswanathan 2019 (arXiv 1808.00087). A sample that is cut down has no finite divergence. For several rows of a
person no divergence is computed, which counts as an infinite one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fedprivacy.accounting.arrays import FloatArray
from fedprivacy.accounting.histories import check_delta, executed_events, truncation
from fedprivacy.accounting.pairs import pair
from fedprivacy.values.events import (
    Event,
    FixedSizeSampledGaussian,
    History,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomizedResponse,
    RowSampledGaussian,
    TruncatedPoissonSampledGaussian,
)

ORDERS: FloatArray = np.sort(
    np.concatenate(
        [
            [1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.2, 2.4, 2.6, 2.8],
            [3.25, 3.5, 3.75, 4.5, 5.5, 6.5, 7.5, 8.5],
            np.arange(2.0, 65.0),
            [72.0, 80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0],
        ]
    )
)
"""Rényi orders tried by default: dense where the best order of DP-SGD lies, near 1 for large epsilons."""
ORDERS.setflags(write=False)

_ROUND_UP = 1.0 + 1e-11  # above the error measured against 50-digit arithmetic; the log-binomials dominate it
_SERIES_BELOW = 0.02  # |u| (a - 1) under which (1+u)^a - 1 - au is summed as a series instead of subtracted
_LARGEST_INTEGRATED = 32.0  # fractional orders beyond lie on the chord: it is within 1 / (4 a^2) of a Gaussian's curve
_SERIES_TERMS = 10
_MOST_NODES = 20_000
_BINS_PER_OCTAVE = 16  # of noise multipliers whose integrals are taken on as many nodes
_STRAIGHT = 20.0  # a / s up to which neither (1 + u)^a overflows nor the normal density underflows
_LARGEST_LOG_RATIO = 600.0
_BLOCK = 2**16  # number of values processed at once: they stay in the processor's cache


def divergences(events: Sequence[Event], orders: ArrayLike = ORDERS) -> FloatArray:
    """Compute Rényi divergences of one execution of each event, in nats.

    Args:
        events: the mechanisms, in any order, repeated or not.
        orders: Rényi orders a, each > 1 and finite, shape [orders].

    Returns:
        Shape [events, orders], never negative, infinite where the divergence exceeds the floating-point range. Rounded
        up.

    Raises:
        ValueError: an order is not greater than 1, or infinite.
    """
    order_array = _checked_orders(orders)
    log_moments = np.empty((len(events), order_array.size))
    kinds: dict[type[Event], list[int]] = {}
    for index, event in enumerate(events):
        kinds.setdefault(type(event), []).append(index)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for indices in kinds.values():
            log_moments[indices] = _log_moments([events[index] for index in indices], order_array)
        divergence = log_moments / (order_array - 1.0)
    return np.where(np.isnan(divergence), np.inf, divergence) * _ROUND_UP


def rdp(event: Event, orders: ArrayLike = ORDERS) -> FloatArray:
    """Compute the Rényi divergence of one execution of `event`, in nats, shape [orders]: see `divergences`."""
    return np.array(_rows((event,), tuple(_checked_orders(orders).tolist()))[0])


def compose(history: History, orders: ArrayLike = ORDERS) -> FloatArray:
    """Compute the Rényi divergence of a whole history, in nats, shape [orders]: the sum over its executions.

    Raises:
        ValueError: the history mixes neighbouring relations, or an order is not greater than 1.
    """
    executed = executed_events(history)
    rows = _rows(tuple(executed), tuple(_checked_orders(orders).tolist()))
    total = np.zeros(rows.shape[1])
    for count, row in zip(executed.values(), rows, strict=True):
        total += count * row
    return total


def epsilon(history: History, delta: float) -> float:
    """Return the smallest epsilon that `ORDERS`, or the order infinity, prove for `history` at `delta`; 0 if empty.

    It is infinite if samples were cut down, see `histories.untruncated`.

    Raises:
        ValueError: delta is outside (0, 1), or the history mixes neighbouring relations.
    """
    check_delta(delta)
    executed = executed_events(history)
    if not executed:
        return 0.0
    return min(float(to_epsilon(compose(executed), delta).min()), largest_loss(executed))


def largest_loss(history: Mapping[Event, int]) -> float:
    """Return the divergence of order infinity, in nats: the history's cost at delta 0 (basic composition)."""
    if any(isinstance(event, TruncatedPoissonSampledGaussian) for event in history):
        return math.inf
    return sum(count * pair(event).largest_loss for event, count in history.items()) * _ROUND_UP


def to_epsilon(divergence: ArrayLike, delta: ArrayLike, orders: ArrayLike = ORDERS) -> FloatArray:
    """Return the epsilon at `delta` that each order proves alone (Canonne, Kamath, Steinke 2020, arXiv 2004.00010,
    Prop. 12).

    Args:
        divergence: Rényi divergence in nats, shape [..., orders].
        delta: probability in (0, 1), one, or of a shape like [..., 1].
        orders: Rényi orders, shape [orders].

    Returns:
        Same shape as `divergence`, never negative.
    """
    return np.maximum(0.0, np.asarray(divergence, dtype=np.float64) + _conversion_cost(delta, np.asarray(orders)))


def to_divergence(epsilon: float, delta: float, order: float) -> float:
    """Return the largest Rényi divergence of `order`, in nats, that still proves (epsilon, delta); may be negative."""
    return epsilon - float(_conversion_cost(delta, np.float64(order)))


def _conversion_cost(delta: ArrayLike, orders: NDArray[np.float64] | np.float64) -> FloatArray:
    return np.asarray(np.log1p(-1.0 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1.0))


@functools.lru_cache(maxsize=1024)
def _rows(events: tuple[Event, ...], orders: tuple[float, ...]) -> FloatArray:
    return divergences(events, orders)


def _checked_orders(orders: ArrayLike) -> FloatArray:
    order_array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not np.all((order_array > 1.0) & (order_array < np.inf)):
        raise ValueError(
            f"the Rényi orders lie between {order_array.min()} and {order_array.max()}; choose finite orders greater "
            "than 1."
        )
    return order_array


def _log_moments(events: Sequence[Event], orders: FloatArray) -> FloatArray:
    """Compute log(A_a) of events of one type, or bounds on it, shape [events, orders]."""
    match events[0]:
        case RandomizedResponse():
            return np.logaddexp(0.0, _answers(events, orders))
        case TruncatedPoissonSampledGaussian():
            return _truncated_moments(events, orders)
        case RowSampledGaussian():
            return np.full((len(events), orders.size), np.inf)
        case PoissonSampledLaplace():
            return _sampled_laplace(*_parameters(events), orders)
        case PoissonSampledGaussian():
            return _sampled_gaussian(*_parameters(events), orders)
        case FixedSizeSampledGaussian():
            rates, noise = _parameters(events)
            log_moments = _sampled_gaussian(rates, noise, orders)
            doubled = np.logaddexp(0.0, math.log(2.0) + log_moments + np.log(-np.expm1(-log_moments)))
            return np.where(rates[:, None] < 1.0, doubled, log_moments)


def _parameters(events: Sequence[Event]) -> tuple[FloatArray, FloatArray]:
    """Return sampling rates and noise in units of the sensitivity, each of shape [events]."""
    sampled = (PoissonSampledGaussian, PoissonSampledLaplace, FixedSizeSampledGaussian)
    known = [event for event in events if isinstance(event, sampled)]
    rates = np.array([event.sampling_rate for event in known], dtype=np.float64)
    noise = np.array([event.noise_multiplier / event.sensitivity for event in known], dtype=np.float64)
    return rates, noise


def _sampled_gaussian(rates: FloatArray, noise: FloatArray, orders: FloatArray) -> FloatArray:
    """log(A_a), shape [events, orders]: whole orders by sums, others by integrals or, where those are long, chords."""
    log_moments = orders * (orders - 1.0) / (2.0 * noise[:, None] ** 2)
    bins = np.where(rates < 1.0, np.floor(np.log2(noise) * _BINS_PER_OCTAVE), np.nan)
    for bin in np.unique(bins[rates < 1.0]):
        least = 2.0 ** (bin / _BINS_PER_OCTAVE)
        nodes = np.ceil((orders / least + 19.0) / _node_spacing(np.float64(least)))
        integrated = (orders % 1.0 != 0.0) & (orders <= _LARGEST_INTEGRATED) & (nodes <= _MOST_NODES)
        widest = int(nodes[integrated].sum()) // 2, int(np.ceil(orders[~integrated].max(initial=1.0)))
        for rows in _blocks(np.flatnonzero(bins == bin), max(widest)):
            powers = functools.partial(_gaussian_powers, noise[rows, None])
            log_moments[np.ix_(rows, ~integrated)] = _chords(rates[rows], powers, orders[~integrated])
            if integrated.any():
                excess = _integrals(rates[rows], noise[rows], orders[integrated], nodes[integrated].astype(np.int64))
                log_moments[np.ix_(rows, integrated)] = np.logaddexp(0.0, excess)
    return log_moments


def _sampled_laplace(rates: FloatArray, noise: FloatArray, orders: FloatArray) -> FloatArray:
    """log(A_a), shape [events, orders]: without sampling in closed form, with it by sums and chords."""
    log_moments = np.logaddexp(0.0, _laplace_powers(noise[:, None], orders))
    for rows in _blocks(np.flatnonzero(rates < 1.0), int(np.ceil(orders.max(initial=1.0)))):
        log_moments[rows] = _chords(rates[rows], functools.partial(_laplace_powers, noise[rows, None]), orders)
    return log_moments


def _answers(events: Sequence[Event], orders: FloatArray) -> FloatArray:
    """log(A_a - 1) of randomised response, shape [events, orders].

    With e the odds of the truth against another category, l = log e and t the probability of another category,
    A_a - 1 = t (1 - e^-(a - 1) l) (e^(a l) - 1): a product of numbers that are not negative.
    """
    losses = np.stack([pair(event).support(math.inf)[1] for event in events])
    lies = [[event.uniform_probability / event.categories] for event in events if isinstance(event, RandomizedResponse)]
    falling, rising = np.log(-np.expm1((1.0 - orders) * losses)), np.log(-np.expm1(-orders * losses))
    return np.asarray(np.log(np.array(lies)) + falling + orders * losses + rising)


def _truncated_moments(events: Sequence[Event], orders: FloatArray) -> FloatArray:
    """log(A_a), shape [events, orders]: infinite where a sample may be cut down."""
    log_moments = np.full((len(events), orders.size), np.inf)
    for row, event in enumerate(events):
        if isinstance(event, TruncatedPoissonSampledGaussian) and truncation(event) == 0.0:
            log_moments[row] = _log_moments([event.untruncated], orders)[0]
    return log_moments


def _blocks(members: NDArray[np.intp], width: int) -> Iterator[NDArray[np.intp]]:
    """`members` in parts so short that tables of `width` numbers for each of them stay in the processor's cache."""
    length = max(1, _BLOCK // width)
    for start in range(0, members.size, length):
        yield members[start : start + length]


def _chords(rates: FloatArray, log_powers: Callable[[FloatArray], FloatArray], orders: FloatArray) -> FloatArray:
    """log(A_a) at whole orders, and an upper bound on it at the others, shape [events, orders].

    a -> log(A_a) is convex, so it lies below the chord between the neighbouring whole orders; log(A_1) = 0.
    """
    below, above = np.floor(orders), np.ceil(orders)
    whole = np.unique(np.concatenate([below, above]))
    log_moments = np.zeros((rates.size, whole.size))
    beyond_one = whole > 1.0
    log_moments[:, beyond_one] = np.logaddexp(0.0, _sums(rates, log_powers, whole[beyond_one]))
    at_below, at_above = (log_moments[:, np.searchsorted(whole, ends)] for ends in (below, above))
    between = orders > below
    return np.where(between, at_below + (orders - below) * (at_above - at_below), at_below)


def _sums(rates: FloatArray, log_powers: Callable[[FloatArray], FloatArray], orders: FloatArray) -> FloatArray:
    """log(A_a - 1) at whole orders, shape [events, orders].

    A_a - 1 = sum_{k=2..a} C(a, k) q^k (1 - q)^(a - k) (M_k - 1), M_k = E_Q[(P / Q)^k] without sampling: positive terms.
    `log_powers` is log(M_k - 1) as a function of k, from shape [k] to shape [events, k]; the orders a are at least 2.
    """
    k = np.arange(2.0, orders.max(initial=1.0) + 1.0)
    log_terms = log_powers(k) + k * np.log(rates[:, None])
    log_rest = np.log1p(-rates[:, None, None])
    log_sums = np.empty((rates.size, orders.size))
    for group in _groups(orders):
        log_choices, others = _choices(tuple(orders[group].tolist()))
        terms = others * log_rest + log_choices + log_terms[:, None, : log_choices.shape[1]]
        largest = terms.max(axis=-1)
        centre = np.where(np.isfinite(largest), largest, 0.0)  # +inf and -inf are kept
        log_sums[:, group] = np.asarray(centre + np.log(np.exp(terms - centre[..., None]).sum(axis=-1)))
    return log_sums


def _gaussian_powers(noise: FloatArray, k: FloatArray) -> FloatArray:
    """log(M_k - 1), M_k = e^(k (k - 1) / (2 s^2))."""
    exponent = k * (k - 1.0) / (2.0 * noise**2)
    return np.asarray(exponent + np.log(-np.expm1(-exponent)))


def _laplace_powers(noise: FloatArray, k: FloatArray) -> FloatArray:
    """log(M_k - 1), M_k = (k e^((k - 1) / b) + (k - 1) e^(-k / b)) / (2 k - 1), for any real k > 1.

    The terms linear in 1 / b cancel, so each exponential is replaced by its excess over its tangent.
    """
    rising = np.log(k) + _log_above_tangent((k - 1.0) / noise)
    falling = np.log(k - 1.0) + _log_above_tangent(-k / noise)
    return np.asarray(np.logaddexp(rising, falling) - np.log(2.0 * k - 1.0))


def _log_above_tangent(z: FloatArray) -> FloatArray:
    """log(e^z - 1 - z), without loss of digits."""
    small = np.clip(z, -0.5, 0.5)
    series = np.ones(z.shape)
    for k in range(16, 2, -1):  # Horner's scheme of sum_{k>=2} z^k / k! over its first term
        series = 1.0 + small / k * series
    near = np.log(0.5 * small**2 * series)
    negative = np.log(np.expm1(np.minimum(z, -0.5)) - np.minimum(z, -0.5))
    large = np.maximum(z, 0.5)
    positive = large + np.log1p(-(1.0 + large) * np.exp(-large))
    return np.where(np.abs(z) <= 0.5, near, np.where(z < 0.0, negative, positive))


@functools.lru_cache(maxsize=2048)
def _choices(orders: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """log C(a, k) and a - k for k = 2 .. largest order, shape [orders, k]: minus infinity and 0 where k > a."""
    order, k = np.array(orders)[:, None], np.arange(2.0, max(orders) + 1.0)
    others = np.maximum(order - k, 0.0)
    log_choices = (
        scipy.special.gammaln(order + 1.0) - scipy.special.gammaln(k + 1.0) - scipy.special.gammaln(others + 1.0)
    )
    return np.where(k > order, -np.inf, log_choices), others


def _groups(sizes: FloatArray) -> list[NDArray[np.intp]]:
    """Group indices of similar sizes: those up to 64 together, then those of an octave."""
    octaves = np.maximum(np.ceil(np.log2(sizes)), 6.0)
    return [np.flatnonzero(octaves == octave) for octave in np.unique(octaves)]


def _node_spacing(noise: NDArray[np.float64] | np.float64) -> FloatArray:
    # The integrand is analytic in the strip |Im t| < pi s: at this spacing the trapezoid rule is exact to 1e-12.
    return np.minimum(0.35, 0.45 * np.asarray(noise))


def _integrals(rates: FloatArray, noise: FloatArray, orders: FloatArray, nodes: NDArray[np.int64]) -> FloatArray:
    """log(A_a - 1) by the trapezoid rule, each order on as many `nodes`, shape [events, orders].

    A_a - 1 = E[(1 + u)^a - 1 - a u] with u = q (e^(t/s - 1/(2 s^2)) - 1), t standard normal: E[u] = 0, and what is
    averaged is never negative because (1 + u)^a is convex, so no sum of alternating terms loses its sign.
    """
    q, s = rates[:, None], noise[:, None]
    t = _node_spacing(s) * np.arange(nodes.max()) - 9.5
    log_ratio = t / s - 0.5 / s**2
    u = q * np.expm1(np.minimum(log_ratio, _LARGEST_LOG_RATIO))  # cut off: too little is subtracted from (1 + u)^a
    v = np.log1p(u)
    far = int((log_ratio <= _LARGEST_LOG_RATIO).all(axis=0).sum())
    v[:, far:] = np.logaddexp(np.log1p(-q), np.log(q) + log_ratio[:, far:])
    log_density = -0.5 * t**2 + np.log(_node_spacing(s) / np.sqrt(2.0 * np.pi))
    excess = np.empty((rates.size, orders.size))
    for group in _groups(nodes.astype(np.float64)):
        last = int(nodes[group].max())
        straight = orders[group].max() <= _STRAIGHT * noise.min()
        excess[:, group] = _log_sums(
            u[:, None, :last], v[:, None, :last], log_density[:, None, :last], orders[group, None], straight
        )
    return excess


def _log_sums(u: FloatArray, v: FloatArray, log_density: FloatArray, orders: FloatArray, straight: bool) -> FloatArray:
    """log of the sum over nodes of ((1 + u)^a - 1 - a u) * density, shape [events, orders].

    u, v = log(1 + u) and `log_density` have shape [events, 1, nodes], orders a shape [orders, 1]; `straight` where all
    is within the floating-point range.
    """
    powers = orders * v
    scale = np.zeros((u.shape[0], orders.size, 1))
    if straight:
        terms = (np.expm1(powers) - orders * u) * np.exp(log_density)
    else:
        scale = np.maximum((powers + log_density).max(axis=2, keepdims=True), 0.0)
        near = np.expm1(np.minimum(powers, 1.0)) - orders * u
        far = np.exp(powers + log_density - scale) - (1.0 + orders * u) * np.exp(log_density - scale)
        terms = np.where(powers < 1.0, near * np.exp(log_density - scale), far)
    small = np.abs(u) < _SERIES_BELOW / np.maximum(1.0, orders - 1.0)
    columns = np.flatnonzero(small.any(axis=(0, 1)))
    if columns.size:
        part = slice(columns[0], columns[-1] + 1)
        series = _series(u[:, :, part], orders) * np.exp(log_density[:, :, part] - scale)
        np.copyto(terms[:, :, part], series, where=small[:, :, part])
    return np.asarray(scale[:, :, 0] + np.log(terms.sum(axis=2)))


def _series(u: FloatArray, orders: FloatArray) -> FloatArray:
    """(1 + u)^a - 1 - a u = sum_{k>=2} C(a, k) u^k for small u by Horner's scheme, without loss of digits."""
    series = np.ones(np.broadcast_shapes(u.shape, orders.shape))
    for k in range(_SERIES_TERMS, 2, -1):
        series *= (orders - k + 1.0) / k * u
        series += 1.0
    return np.asarray(0.5 * orders * (orders - 1.0) * u**2 * series)
