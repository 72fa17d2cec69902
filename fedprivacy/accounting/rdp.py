"""Rényi differential privacy (RDP) of events: the moments accountant.

RDP composes by addition, which makes it the fast first answer, the bracket of the calibration, and the currency of
the adaptive filter. It is a bound, not the privacy loss itself: at the same delta, `fedprivacy.accounting.pld` is
tighter, by much when few steps were taken.

>>> from fedprivacy.events import PoissonSampledGaussian
>>> epsilon({PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}, delta=1e-5) < 1.05
True

Formal guarantee. With P = (1 - q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2), both D_a(P || Q) and D_a(Q || P) are at
most log(A_a) / (a - 1), A_a = E_Q[(P / Q)^a]: the direction that removes a record dominates the one that adds it
(Mironov, Talwar, Zhang 2019, arXiv 1908.10530, Theorem 5 and Corollary 7). One number therefore covers both.

What is computed is A_a - 1, never A_a: for a small sampling rate A_a - 1 is of order q^2, far below the spacing of the
floating-point numbers around 1.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from fedprivacy.accounting.histories import check_delta, checked
from fedprivacy.events import Event, History

FloatArray = NDArray[np.float64]

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
"""The Rényi orders tried by default: dense where the best order of DP-SGD lies, near 1 for large epsilons."""
ORDERS.setflags(write=False)

_ROUND_UP = 1.0 + 1e-11  # above the error measured against 50-digit arithmetic; the log-binomials dominate it
_SERIES_BELOW = 0.02  # |u| under which (1+u)^a - 1 - au is summed as a series instead of subtracted
_MOST_NODES = 20_000


def rdp(event: Event, orders: ArrayLike = ORDERS) -> FloatArray:
    """Rényi divergence of one execution of `event`, in nats.

    Args:
        event: the mechanism.
        orders: Rényi orders a, each > 1, shape [orders].

    Returns:
        Shape [orders], never negative, infinite where the divergence exceeds the floating-point range. Rounded up.

    Raises:
        ValueError: an order is not greater than 1.
    """
    order_array = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not np.all(order_array > 1.0):
        raise ValueError(f"the Rényi orders start at {order_array.min()}; choose orders greater than 1.")
    return _rdp(event, tuple(order_array.tolist())).copy()


def compose(history: History, orders: ArrayLike = ORDERS) -> FloatArray:
    """Rényi divergence of a whole history, in nats, shape [orders]: the sum over its executions.

    Raises:
        ValueError: the history mixes neighbouring relations, or an order is not greater than 1.
    """
    total = np.zeros(np.atleast_1d(np.asarray(orders)).shape)
    for event, count in checked(history).items():
        total += count * rdp(event, orders)
    return total


def epsilon(history: History, delta: float) -> float:
    """Smallest epsilon that `ORDERS` prove for `history` at `delta`; 0 for an empty history.

    Raises:
        ValueError: delta is outside (0, 1), or the history mixes neighbouring relations.
    """
    check_delta(delta)
    return float(to_epsilon(compose(history), delta).min()) if checked(history) else 0.0


def to_epsilon(divergence: ArrayLike, delta: float, orders: ArrayLike = ORDERS) -> FloatArray:
    """Epsilon at `delta` that each order proves alone (Canonne, Kamath, Steinke 2020, arXiv 2004.00010, Prop. 12).

    Args:
        divergence: Rényi divergence in nats, shape [..., orders].
        delta: probability in (0, 1).
        orders: Rényi orders, shape [orders].

    Returns:
        Same shape as `divergence`, never negative.
    """
    return np.maximum(0.0, np.asarray(divergence, dtype=np.float64) + _conversion_cost(delta, np.asarray(orders)))


def to_divergence(epsilon: float, delta: float, order: float) -> float:
    """Largest Rényi divergence of `order`, in nats, that still proves (epsilon, delta); may be negative."""
    return epsilon - float(_conversion_cost(delta, np.float64(order)))


def _conversion_cost(delta: float, orders: NDArray[np.float64] | np.float64) -> FloatArray:
    return np.asarray(np.log1p(-1.0 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1.0))


@functools.lru_cache(maxsize=4096)
def _rdp(event: Event, orders: tuple[float, ...]) -> FloatArray:
    order_array = np.array(orders)
    sampling_rate, noise = np.float64(event.sampling_rate), np.float64(event.noise_multiplier)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if sampling_rate == 1.0:
            divergence = order_array / (2.0 * noise**2)
        else:
            divergence = _log_moments(sampling_rate, noise, order_array) / (order_array - 1.0)
    return np.where(np.isnan(divergence), np.inf, divergence) * _ROUND_UP


def _log_moments(sampling_rate: np.float64, noise: np.float64, orders: FloatArray) -> FloatArray:
    """log(A_a), shape [orders]."""
    whole = orders == np.round(orders)
    integrated = ~whole & (_node_count(noise, orders) <= _MOST_NODES)
    log_moments = np.empty(orders.shape)
    for index in np.flatnonzero(whole):
        log_moments[index] = np.logaddexp(0.0, _whole_order(sampling_rate, noise, int(orders[index])))
    if integrated.any():
        log_moments[integrated] = np.logaddexp(0.0, _fractional_orders(sampling_rate, noise, orders[integrated]))
    for index in np.flatnonzero(~whole & ~integrated):
        log_moments[index] = _chord(sampling_rate, noise, float(orders[index]))
    return log_moments


def _whole_order(sampling_rate: np.float64, noise: np.float64, order: int) -> float:
    """log(A_a - 1) = log sum_{k=2..a} C(a, k) q^k (1 - q)^(a - k) (e^(k (k - 1) / (2 s^2)) - 1), a sum of positives."""
    k = np.arange(2, order + 1, dtype=np.float64)
    exponent = k * (k - 1.0) / (2.0 * noise**2)
    log_expm1 = exponent + np.log(-np.expm1(-exponent))
    log_odds = k * np.log(sampling_rate) + (order - k) * np.log1p(-sampling_rate)
    return float(_log_sum_exp(_log_binomials(order) + log_odds + log_expm1))


@functools.lru_cache(maxsize=256)
def _log_binomials(order: int) -> FloatArray:
    k = np.arange(2, order + 1, dtype=np.float64)
    return np.asarray(gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0))


def _node_spacing(noise: np.float64) -> float:
    # The integrand is analytic in the strip |Im t| < pi s: at this spacing the trapezoid rule is exact to 1e-12.
    return min(0.35, 0.45 * float(noise))


def _node_count(noise: np.float64, orders: FloatArray) -> FloatArray:
    return (orders / noise + 19.0) / _node_spacing(noise)


def _fractional_orders(sampling_rate: np.float64, noise: np.float64, orders: FloatArray) -> FloatArray:
    """log(A_a - 1) by the trapezoid rule, shape [orders].

    A_a - 1 = E[(1 + u)^a - 1 - a u] with u = q (e^(t/s - 1/(2 s^2)) - 1), t standard normal: E[u] = 0, and what is
    averaged is never negative because (1 + u)^a is convex, so no sum of alternating terms loses its sign.
    """
    spacing = _node_spacing(noise)
    t = np.arange(-9.5, orders.max() / noise + 9.5, spacing)
    log_ratio = t / noise - 0.5 / noise**2
    log_density = -0.5 * t**2 - 0.5 * np.log(2.0 * np.pi) + np.log(spacing)
    return _log_sum_exp(_log_excess(sampling_rate, log_ratio, orders[:, None]) + log_density)


def _log_excess(sampling_rate: np.float64, log_ratio: FloatArray, orders: FloatArray) -> FloatArray:
    """log((1 + u)^a - 1 - a u), u = q (e^log_ratio - 1), shape [orders, nodes], in three ranges of u."""
    u = sampling_rate * np.expm1(np.minimum(log_ratio, 600.0))
    v = np.where(u < 1.0, np.log1p(u), np.logaddexp(np.log1p(-sampling_rate), np.log(sampling_rate) + log_ratio))
    small = np.clip(u, -_SERIES_BELOW, _SERIES_BELOW)
    series = np.ones(np.broadcast_shapes(orders.shape, u.shape))
    for k in range(11, 2, -1):  # Horner's scheme of sum_{k>=2} C(a, k) u^k over its first term
        series = 1.0 + (orders - k + 1.0) / k * small * series
    log_series = np.log(0.5 * orders * (orders - 1.0) * small**2 * series)
    medium = np.minimum(u, 2.0)
    log_medium = np.log(np.expm1(orders * np.log1p(medium)) - orders * medium)
    large = np.maximum(v, 0.5)
    tail = (orders - 1.0) * np.exp(-orders * large) - orders * np.exp(-(orders - 1.0) * large)
    log_large = orders * large + np.log1p(tail)
    return np.where(np.abs(u) < _SERIES_BELOW, log_series, np.where(u < 1.0, log_medium, log_large))


def _chord(sampling_rate: np.float64, noise: np.float64, order: float) -> float:
    """Upper bound on log(A_a) for noise so small that the trapezoid rule would need too many nodes.

    a -> log(A_a) is convex, so it lies below the chord between the neighbouring whole orders; log(A_1) = 0.
    """
    below, above = int(np.floor(order)), int(np.ceil(order))
    at_below = 0.0 if below == 1 else float(np.logaddexp(0.0, _whole_order(sampling_rate, noise, below)))
    at_above = float(np.logaddexp(0.0, _whole_order(sampling_rate, noise, above)))
    return at_below + (order - below) * (at_above - at_below)


def _log_sum_exp(log_terms: FloatArray) -> FloatArray:
    """log of the sum of exponentials over the last axis; +inf and -inf are kept."""
    largest = log_terms.max(axis=-1)
    centre = np.where(np.isfinite(largest), largest, 0.0)
    return np.asarray(centre + np.log(np.exp(log_terms - centre[..., None]).sum(axis=-1)))
