"""Classical bounds on epsilon, as tutorials compute them, for comparison with `pld`.

All of them are upper bounds, and all are far from tight: each replaces the mechanism by its (epsilon, delta) before
composing, and a privacy loss is more than that pair.

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> from fedprivacy.accounting import pld
>>> history = {PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0): 1_000}
>>> [round(bound(history, 1e-5), 1) for bound in (basic, advanced, pld.epsilon)]
[839.4, 543.4, 1.8]
"""

from __future__ import annotations

import math
import sys

from fedprivacy.accounting import gdp
from fedprivacy.accounting.histories import check_delta
from fedprivacy.values.events import History, PoissonSampledGaussian


def analytic_gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian release without sampling (Balle, Wang 2018, arXiv 1805.06530, Theorem
    8).

    Args:
        noise_multiplier: sigma, > 0 and finite.
        delta: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; infinite where it exceeds the floating-point range.

    Raises:
        ValueError: an argument is out of range.
    """
    check_delta(delta)
    if not (noise_multiplier > 0.0 and math.isfinite(noise_multiplier)):
        raise ValueError(f"noise_multiplier is {noise_multiplier}; choose a positive, finite number.")
    return gdp.gaussian_epsilon(min(1.0 / noise_multiplier, sys.float_info.max), delta)


def amplify(epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """Return epsilon and delta of an (epsilon, delta) mechanism on a Poisson sample of the records.

    (log(1 + q (e^epsilon - 1)), q delta), for adding or removing a record (Balle, Barthe, Gaboardi 2018, arXiv
    1807.01647, Theorem 8).

    Args:
        epsilon: in nats, >= 0, may be infinite.
        delta: probability in [0, 1].
        sampling_rate: q, in (0, 1].

    Raises:
        ValueError: an argument is out of range.
    """
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon}; choose a number of at least 0.")
    if not 0.0 <= delta <= 1.0:
        raise ValueError(f"delta is {delta}; choose a probability in [0, 1].")
    if not 0.0 < sampling_rate <= 1.0:
        raise ValueError(f"sampling_rate is {sampling_rate}; choose a probability in (0, 1].")
    if epsilon <= 1.0:
        return math.log1p(sampling_rate * math.expm1(epsilon)), sampling_rate * delta
    # log(1 - q + q e^eps) without the exponential, which overflows
    rest = (1.0 - sampling_rate) / sampling_rate * math.exp(-epsilon)
    return max(epsilon + math.log(sampling_rate) + math.log1p(rest), 0.0), sampling_rate * delta


def basic(history: History, delta: float) -> float:
    """Sum the epsilons of the single executions, each at an equal share of delta; 0 for an empty history.

    A single execution is the exact Gaussian mechanism, amplified by sampling. The bound holds for both directions.

    Returns:
        Epsilon in nats, >= 0; infinite where it exceeds the floating-point range.

    Raises:
        ValueError: delta is outside (0, 1), or the history mixes neighbouring relations or holds another event than
            `PoissonSampledGaussian`.
    """
    return sum((count * single for single, count in _singles(history, delta)), 0.0)


def advanced(history: History, delta: float) -> float:
    """Bound epsilon by strong composition, or by `basic` where that is smaller; 0 for an empty history.

    Formal guarantee. k mechanisms, the i-th (eps_i, delta_i)-private, are (eps, d + sum of the delta_i)-private with
    eps = sum of eps_i (e^eps_i - 1) / (e^eps_i + 1) + sqrt(2 log(1 / d) * sum of eps_i^2) (Kairouz, Oh, Viswanath 2015,
    arXiv 1311.0776, Theorem 3.5; for equal mechanisms Dwork, Rothblum, Vadhan 2010, Theorem III.3). Half of delta is
    the slack d; the executions share the other half evenly.

    Returns:
        Epsilon in nats, >= 0; infinite where it exceeds the floating-point range.

    Raises:
        ValueError: as `basic`.
    """
    singles = _singles(history, delta, 0.5)
    drift = sum(count * single * math.tanh(0.5 * single) for single, count in singles)
    spread = math.hypot(*(math.sqrt(count) * single for single, count in singles))
    return min(basic(history, delta), drift + math.sqrt(2.0 * math.log(2.0 / delta)) * spread)


def _singles(history: History, delta: float, share: float = 1.0) -> list[tuple[float, int]]:
    """Return the epsilon of one execution of each event, at an equal part of a share of delta, and the executions."""
    check_delta(delta)
    executed = gdp.gaussians(history)
    each = share * delta / max(sum(executed.values()), 1)
    return [(_single_epsilon(event, each), count) for event, count in executed.items()]


def _single_epsilon(event: PoissonSampledGaussian, delta: float) -> float:
    """Return the epsilon of one execution: unsampled at delta / q, then amplified; 0 where delta / q reaches 1."""
    unsampled = delta / event.sampling_rate
    if unsampled >= 1.0:
        return 0.0
    single = analytic_gaussian_epsilon(event.noise_multiplier / event.sensitivity, unsampled)
    return amplify(single, unsampled, event.sampling_rate)[0]
