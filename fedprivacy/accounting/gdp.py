"""Gaussian differential privacy (GDP): one number mu for a history, by a central limit theorem. For comparison only.

**It is an approximation and no bound.** It understates epsilon, up to 5.8-fold at sampling rate 0.001, noise multiplier
0.7 and 10 steps; no promise may rest on it. It is exact where every event has the sampling rate 1, and on that alone
`filters.GaussianFilter` rests. Published results and other libraries state it; here it can be compared with `pld`:

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> history = {PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0): 1_000}
>>> round(mu(history), 3), round(epsilon(history, delta=1e-5), 2)
(0.415, 1.62)
>>> from fedprivacy.accounting import pld
>>> round(pld.epsilon(history, delta=1e-5), 2)
1.83
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache

import scipy

from fedprivacy.accounting.histories import check_delta, executed_events
from fedprivacy.values.events import History, PoissonSampledGaussian

_LARGEST_EXPONENT = 700.0  # its exponential is still a floating-point number
_SURELY = -10.0  # value of a below which Phi(-a) is nearly 1 and e^(a^2/2) may overflow
_SMALL_MU = 0.01
_TINY = sys.float_info.min
_DOUBT_OF_LOG_DELTA = 1e-9  # a hundred times and more the rounding error of log delta, for mu of at most 10^5
_DOUBT_OF_MU = 1e-12  # relative rounding error of eps / mu - mu / 2 for a larger mu


def mu(history: History) -> float:
    """Return the approximate GDP parameter of a history (Bu, Dong, Long, Su 2020, Harvard Data Science Review 2 (3)).

    n executions have mu = q sqrt(n (e^(1/s^2) - 1)), s the noise multiplier over the sensitivity, in the limit of many
    steps with q sqrt(n) constant; where q = 1, mu = sqrt(n) / s, exactly. Several events have the root of the sum of
    their squares.

    Returns:
        mu >= 0; infinite where it exceeds the floating-point range.

    Raises:
        ValueError: the history mixes neighbouring relations or holds another event than `PoissonSampledGaussian`.
    """
    return math.hypot(*(math.sqrt(count) * _single_mu(event) for event, count in gaussians(history).items()))


def gaussians(history: History) -> dict[PoissonSampledGaussian, int]:
    """Return the executed events of `history`, which must all be Poisson-sampled Gaussians.

    Raises:
        ValueError: the history mixes neighbouring relations or holds another event than `PoissonSampledGaussian`.
    """
    known: dict[PoissonSampledGaussian, int] = {}
    for event, count in executed_events(history).items():
        if not isinstance(event, PoissonSampledGaussian):
            raise ValueError(f"the history holds {event}, and only Poisson-sampled Gaussians are known; use `pld`.")
        known[event] = count
    return known


def _single_mu(event: PoissonSampledGaussian) -> float:
    inverse = event.sensitivity / event.noise_multiplier
    if event.sampling_rate == 1.0:
        return inverse
    if inverse > math.sqrt(_LARGEST_EXPONENT):
        return math.inf
    return event.sampling_rate * math.sqrt(math.expm1(inverse * inverse))


def epsilon(history: History, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism with the history's `mu`: no bound but an approximation, unless q = 1.

    Args:
        history: number of executions of each event, under one neighbouring relation.
        delta: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; 0 for an empty history.

    Raises:
        ValueError: delta is outside (0, 1), or as `mu`.
    """
    check_delta(delta)
    return gaussian_epsilon(mu(history), delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of N(mu, 1) against N(0, 1) at `delta` (Balle, Wang 2018, arXiv 1805.06530, Theorem 8).

    It is found by bisection down to neighbouring floating-point numbers, of which the larger one is returned. 0 where
    mu is 0; infinite where mu^2 exceeds the floating-point range.
    """
    log_delta = math.log(delta)
    if mu == 0.0 or _log_gaussian_delta(mu, 0.0) <= log_delta:
        return 0.0
    # delta(eps) <= Phi(mu / 2 - eps / mu) <= e^(-x^2 / 2) for x = eps / mu - mu / 2 >= 0
    low, high = 0.0, mu * (0.5 * mu + math.sqrt(-2.0 * log_delta))
    if math.isinf(high):
        return math.inf
    while low < (middle := 0.5 * (low + high)) < high:
        if _log_gaussian_delta(mu, middle) > log_delta:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=1024)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which N(mu, 1) against N(0, 1) is (epsilon, delta)-differentially private, rounded
    down.

    It is found by bisection on the exact delta (Balle, Wang 2018), which grows with mu. Rounding errors are charged:
    the returned mu is valid, and less than a relative 1e-8 below the largest (for delta up to 0.9).

    Args:
        epsilon: in nats, > 0 and finite.
        delta: probability in (0, 1).
    """
    log_delta = math.log(delta) - _DOUBT_OF_LOG_DELTA
    low = high = 1.0
    while _log_gaussian_delta(high, epsilon) <= log_delta:
        low, high = high, 2.0 * high
    while _log_gaussian_delta(low, epsilon) > log_delta:
        low, high = 0.5 * low, low
    while low < (middle := 0.5 * (low + high)) < high:
        if _log_gaussian_delta(middle, epsilon) > log_delta:
            high = middle
        else:
            low = middle
    return low * (1.0 - _DOUBT_OF_MU)


def _log_gaussian_delta(mu: float, epsilon: float) -> float:
    """Compute log(Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)).

    With a = eps/mu - mu/2 and b = a + mu, e^eps e^(-b^2/2) = e^(-a^2/2): both terms share a factor, no exponential
    overflows and a tiny delta keeps its digits.
    """
    a, b = epsilon / mu - 0.5 * mu, epsilon / mu + 0.5 * mu
    if a < _SURELY:
        return math.log1p(-float(scipy.special.ndtr(a)) - math.exp(-0.5 * a * a) * _scaled_tail(b))
    if mu > _SMALL_MU:
        difference = _scaled_tail(a) - _scaled_tail(b)
    else:  # the two are nearly equal: integrate minus the derivative from a to b, by Gauss's rule of two nodes
        nodes = [epsilon / mu - 0.5 * mu / math.sqrt(3.0), epsilon / mu + 0.5 * mu / math.sqrt(3.0)]
        difference = 0.5 * mu * sum(1.0 / math.sqrt(2.0 * math.pi) - x * _scaled_tail(x) for x in nodes)
    return -0.5 * a * a + math.log(max(difference, _TINY))


def _scaled_tail(x: float) -> float:
    """Compute e^(x^2/2) Phi(-x)."""
    return 0.5 * float(scipy.special.erfcx(x / math.sqrt(2.0)))
