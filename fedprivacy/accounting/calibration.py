"""Calibration: the noise or the number of steps that spends a budget, by the PLD.

>>> from fedprivacy.values.budget import PrivacyBudget
>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
>>> round(noise_multiplier(budget, sampling_rate=0.01, steps=1_000), 2)
0.96
>>> step_quota(PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0), budget) > 1_000
True
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedprivacy.accounting import pld, rdp
from fedprivacy.accounting.histories import extended
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian

UNLIMITED = 2**31 - 1
"""Quota of a budget that is not enforced, and the largest quota ever returned."""

LEAST_NOISE, MOST_NOISE = 1e-2, 1e4  # smallest and largest noise multiplier of the search
_USED = 0.999  # minimum share of epsilon that a calibrated noise multiplier spends
_AIM = 0.9995
_RAREST = 1e9  # inverse of the smallest sampling rate that is tried
_FINEST_RATIO = 1.0 + 1e-9  # ratio of two noise multipliers below which they count as equal


def noise_multiplier(
    budget: PrivacyBudget,
    sampling_rate: float,
    steps: int,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE,
    past: History | None = None,
) -> float:
    """Return the smallest noise multiplier with which `steps` Poisson-sampled Gaussian releases stay within `budget`.

    Args:
        budget: finite epsilon, and delta, for the past and the releases together.
        sampling_rate: q, in (0, 1].
        steps: number of releases, at least 1.
        relation: the neighbouring relation of the events.
        past: earlier executions; empty when omitted.

    Returns:
        A noise multiplier whose epsilon by `pld.epsilon` is at most the budget's, and at least 99.9 % of it.

    Raises:
        ValueError: the budget is infinite, is spent, is met without noise, or is missed with a noise multiplier of
            10^4; or `sampling_rate` or `steps` is out of range, or the past has another relation.
    """
    check_solvable(budget, steps)
    setting = f"epsilon is {budget.epsilon} at delta {budget.delta} for {steps} steps at sampling_rate {sampling_rate}"
    before = pld.epsilon(past, budget.delta) if past else 0.0
    if before >= budget.epsilon:
        raise ValueError(f"{setting}, and the past alone has spent {before:.6g}; choose a larger epsilon.")

    def history(noise: float) -> History:
        return extended(past, PoissonSampledGaussian(sampling_rate, noise, relation), steps)

    def spent(noise: float) -> float:
        return pld.epsilon(history(noise), budget.delta)

    enough = LEAST_NOISE
    while enough < MOST_NOISE and rdp.epsilon(history(enough), budget.delta) > budget.epsilon:
        enough = min(2.0 * enough, MOST_NOISE)
    if spent(enough) > budget.epsilon:
        raise ValueError(
            f"{setting}, which a noise multiplier of {MOST_NOISE:g} does not meet; choose a larger epsilon, "
            "fewer steps or a smaller sampling_rate."
        )
    too_little = enough
    while spent(too_little) <= budget.epsilon:
        if too_little <= LEAST_NOISE:
            raise ValueError(
                f"{setting}, which a noise multiplier of {LEAST_NOISE:g} already meets: the budget asks for no "
                "noise; choose a smaller epsilon, or a delta well below sampling_rate * steps."
            )
        enough, too_little = too_little, max(too_little / 1.5, LEAST_NOISE)
    return _narrowed(spent, too_little, enough, budget.epsilon)


def sampling_rate(budget: PrivacyBudget, noise_multiplier: float, steps: int, past: History | None = None) -> float:
    """Return the largest sampling rate with which `steps` Poisson-sampled Gaussian releases stay within `budget`.

    Args:
        budget: finite epsilon, and delta, for the past and the releases together.
        noise_multiplier: sigma of the releases.
        steps: number of releases, at least 1.
        past: earlier executions, under adding or removing one record; empty when omitted.

    Returns:
        A sampling rate whose epsilon by `pld.epsilon` is at most the budget's, and at least 99.9 % of it; 1 if even
        that fits.

    Raises:
        ValueError: the budget is infinite, or even a rate of 10^-9 does not fit.
    """
    check_solvable(budget, steps, ": every sampling rate fits an infinite one.")

    def spent(inverse: float) -> float:
        event = PoissonSampledGaussian(min(1.0, 1.0 / inverse), noise_multiplier)
        return pld.epsilon(extended(past, event, steps), budget.delta)

    if spent(1.0) <= budget.epsilon:
        return 1.0
    if spent(_RAREST) > budget.epsilon:
        raise ValueError(
            f"epsilon is {budget.epsilon} at delta {budget.delta} for {steps} steps with a noise multiplier of "
            f"{noise_multiplier}, which a sampling rate of {1.0 / _RAREST:g} does not meet; choose a larger epsilon, "
            "fewer steps or more noise."
        )
    return 1.0 / _narrowed(spent, 1.0, _RAREST, budget.epsilon)


def check_solvable(
    budget: PrivacyBudget, steps: int, remedy: str = ", or choose the noise multiplier yourself."
) -> None:
    """Refuse a budget or a number of steps for which nothing can be solved.

    Raises:
        ValueError: the budget is infinite, or there is no step.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; choose at least 1.")
    if not budget.enforced:
        raise ValueError(f"epsilon is infinite; choose a finite epsilon{remedy}")


def _narrowed(spent: Callable[[float], float], too_little: float, enough: float, epsilon: float) -> float:
    """Narrow the bracket until its upper end spends the wanted share: safeguarded false position on logarithms."""
    excess, saved = spent(too_little), spent(enough)
    iteration = 0
    while saved < _USED * epsilon and enough > too_little * _FINEST_RATIO:
        share = 0.5
        if iteration % 3 < 2 and saved > 0.0 and math.isfinite(excess):
            share = float(np.clip(math.log(excess / (_AIM * epsilon)) / math.log(excess / saved), 0.01, 0.99))
        candidate = too_little * (enough / too_little) ** share
        cost = spent(candidate)
        if cost <= epsilon:
            enough, saved = candidate, cost
        else:
            too_little, excess = candidate, cost
        iteration += 1
    return enough


def step_quota(event: Event, budget: PrivacyBudget, past: History | None = None) -> int:
    """Return the largest n for which `past` and n executions of `event` stay within `budget`, by the PLD.

    Args:
        event: the mechanism that will be repeated.
        budget: epsilon and delta for the past and the future together.
        past: earlier executions; empty when omitted.

    Returns:
        n >= 0, at most `UNLIMITED`; `UNLIMITED` when the budget's epsilon is infinite. 0 when the past alone has
        spent the budget.

    Raises:
        ValueError: the events mix neighbouring relations.
    """
    history = extended(past, event, 0)
    if not budget.enforced:
        return UNLIMITED

    def fits(steps: int) -> bool:
        return pld.epsilon(extended(history, event, steps), budget.delta) <= budget.epsilon

    most = _rdp_quota(event, budget, history)
    if not fits(most):  # 0 by RDP, or a rounding error
        most = 0
        if not fits(0):
            return 0
    stride = 1 + most // 8
    too_many = min(most + stride, UNLIMITED)
    while fits(too_many):
        if too_many == UNLIMITED:
            return UNLIMITED
        stride *= 4
        most, too_many = too_many, min(too_many + stride, UNLIMITED)
    while too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if fits(middle) else (most, middle)
    return most


def _rdp_quota(event: Event, budget: PrivacyBudget, past: History) -> int:
    """Return a number of executions that RDP proves to fit: the start of the search."""
    left = np.array([rdp.to_divergence(budget.epsilon, budget.delta, order) for order in rdp.ORDERS])
    left -= rdp.compose(past)
    cost = np.maximum(rdp.rdp(event), float(np.finfo(float).tiny))
    with np.errstate(over="ignore", invalid="ignore"):
        affordable = float(np.floor(np.nan_to_num(left / cost)).max())  # NaN where both are infinite
    return int(min(max(affordable, 0.0), UNLIMITED))
