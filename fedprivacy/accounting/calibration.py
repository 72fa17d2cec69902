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
from dataclasses import replace

import numpy as np

from fedprivacy.accounting import gdp, pld, rdp
from fedprivacy.accounting.arrays import FloatArray
from fedprivacy.accounting.histories import extended
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian

UNLIMITED = 2**31 - 1
"""Quota of a budget that is not enforced, and the largest quota ever returned."""

LEAST_NOISE, MOST_NOISE = 1e-2, 1e4  # smallest and largest noise multiplier of the search
_USED = 0.999  # minimum share of epsilon that a calibrated noise multiplier spends
_AIM = 0.9995
_RAREST = 1e9  # inverse of the smallest sampling rate that is tried
_ESTIMATE = 0.9991  # share of epsilon that estimates aim at: they are a little too low
_MOST_ESTIMATES, _CLOSE = 8, 2e-4  # the latter of log epsilon
_USUAL = 0.2  # largest correction of a saddle point's delta with which it is believed
_RELATIVE_TILTS: FloatArray = 2.0 ** np.linspace(-4.0, 0.75, 58)
_MOST_NODES = 1000  # of an estimate's integrals
_FLAT = 0.45  # slope of log epsilon by log n, less than the usual one
_LEAST_LEFT = 1e-6  # share of the square of mu, for a guess
_LONGEST_MOVE = math.log(16.0)
_LARGEST_MU, _LARGEST_INVERSE = 1e150, 26.0  # their squares, and e to that of the latter, are finite
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

    event = PoissonSampledGaussian(sampling_rate, 1.0, relation)
    noise = _least(spent, budget, (LEAST_NOISE, MOST_NOISE), *_guessed_noise(budget, before, event, steps))
    if math.isinf(noise):
        raise ValueError(
            f"{setting}, which a noise multiplier of {MOST_NOISE:g} does not meet; choose a larger epsilon, "
            "fewer steps or a smaller sampling_rate."
        )
    if noise <= LEAST_NOISE:
        raise ValueError(
            f"{setting}, which a noise multiplier of {LEAST_NOISE:g} already meets: the budget asks for no "
            "noise; choose a smaller epsilon, or a delta well below sampling_rate * steps."
        )
    return noise


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

    before = pld.epsilon(past, budget.delta) if past else 0.0
    event = PoissonSampledGaussian(1.0, noise_multiplier)

    def spent(inverse: float) -> float:
        sampled = replace(event, sampling_rate=min(1.0, 1.0 / inverse))
        return pld.epsilon(extended(past, sampled, steps), budget.delta)

    root = math.sqrt(steps * math.expm1(min(1.0 / noise_multiplier, _LARGEST_INVERSE) ** 2))
    inverse = _least(spent, budget, (1.0, _RAREST), root / _mu_left(budget, before), slope=-1.0)
    if math.isinf(inverse):
        raise ValueError(
            f"epsilon is {budget.epsilon} at delta {budget.delta} for {steps} steps with a noise multiplier of "
            f"{noise_multiplier}, which a sampling rate of {1.0 / _RAREST:g} does not meet; choose a larger epsilon, "
            "fewer steps or more noise."
        )
    return 1.0 / inverse


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


def _mu_left(budget: PrivacyBudget, before: float) -> float:
    """Return mu of Gaussian mechanisms that spend what is left of a budget, roughly: squares of mu add up."""
    whole = gdp.gaussian_mu(budget.epsilon, budget.delta)
    gone = gdp.gaussian_mu(before, budget.delta) if 0.0 < before < budget.epsilon else 0.0
    return whole * math.sqrt(max(1.0 - (gone / whole) ** 2, _LEAST_LEFT))


def _guessed_noise(
    budget: PrivacyBudget, before: float, event: PoissonSampledGaussian, steps: int
) -> tuple[float, float]:
    """Guess the noise multiplier by the central limit theorem (see `gdp.mu`), then, if it is near, by saddle points.

    Also returns the slope of log epsilon by its logarithm.
    """
    rate, left = event.sampling_rate, _mu_left(budget, before)
    growth = max(min(left / rate, _LARGEST_MU) ** 2 / steps, 1.0 / _LARGEST_MU)
    exponent = growth if rate == 1.0 else math.log1p(growth)
    slope = -1.0 if rate == 1.0 else -exponent * (1.0 + 1.0 / growth)
    first = at = -0.5 * math.log(exponent)
    whole, wanted = gdp.gaussian_mu(budget.epsilon, budget.delta), math.log(_ESTIMATE * budget.epsilon)
    fall, known, before = slope, math.nan, at
    for _ in range(_MOST_ESTIMATES if rate < 1.0 else 0):
        if not abs(at - first) < _LONGEST_MOVE:
            break
        estimate = _saddle_point(rate, math.exp(at), steps, whole, square=whole**2 - left**2, delta=budget.delta)
        excess = math.log(estimate) - wanted if 0.0 < estimate < math.inf else math.nan
        if abs(excess) < _CLOSE:
            return math.exp(at) * event.sensitivity, fall
        secant = (excess - known) / (at - before) if at != before else fall
        fall = secant if 0.25 < secant / fall < 4.0 else fall
        before, known, at = at, excess, at - excess / fall
    return math.exp(first) * event.sensitivity, slope


def _saddle_point(rate: float, noise: float, steps: int, mu: float, *, square: float, delta: float) -> float:
    """Estimate epsilon of sampled Gaussians and of others before them, by the saddle-point method.

    Tilts t around that of a Gaussian mechanism of parameter `mu` are tried; `square` is mu^2 of those before.
    """
    tilts = math.sqrt(-2.0 * math.log(delta)) / mu * _RELATIVE_TILTS
    spacing = min(0.35, 0.45 * noise)
    z = spacing * np.arange(min((18.0 + (1.0 + float(tilts[-1])) / noise) / spacing, _MOST_NODES)) - 9.0
    with np.errstate(all="ignore"):
        losses = np.log1p(rate * np.expm1(z / noise - 0.5 / noise**2))
        exponents = np.multiply.outer(1.0 + tilts, losses) - 0.5 * z**2
        highest = exponents.max(axis=1)
        weights = np.exp(exponents - highest[:, None])
        totals = weights.sum(axis=1)
        means = weights @ losses / totals
        second, third, fourth = ((weights * (losses - means[:, None]) ** k).sum(axis=1) / totals for k in (2, 3, 4))
        saddles = steps * means + square * (tilts + 0.5) - 1.0 / tilts - 1.0 / (1.0 + tilts)
        bends = steps * second + square + tilts**-2.0 + (1.0 + tilts) ** -2.0
        skews = steps * third - 2.0 * (tilts**-3.0 + (1.0 + tilts) ** -3.0)
        tails = steps * (fourth - 3.0 * second**2) + 6.0 * (tilts**-4.0 + (1.0 + tilts) ** -4.0)
        logs = steps * (highest + np.log(totals * spacing / math.sqrt(2.0 * math.pi)))
        logs += 0.5 * square * (tilts**2 + tilts) - tilts * saddles - 0.5 * np.log(2.0 * math.pi * bends)
        corrections = tails / (8.0 * bends**2) - 5.0 * skews**2 / (24.0 * bends**3)
        logs += corrections - np.log(tilts * (1.0 + tilts))
        usual = np.abs(corrections) < _USUAL
    if not usual.any() or (np.diff(logs[usual]) >= 0.0).any():
        return math.nan
    return float(np.interp(-math.log(delta), -logs[usual], saddles[usual], left=math.nan, right=math.nan))


def _least(
    spent: Callable[[float], float], budget: PrivacyBudget, limits: tuple[float, float], guess: float, slope: float
) -> float:
    """Return an x within limits that uses the wanted share of the budget and no more; infinite if none is so large.

    `spent` falls as x grows, and its logarithm by that of x is nearly a line, of the given slope at the guess: few
    secants suffice. The bracket found so far bounds them.
    """
    low, high = limits
    wanted = math.log(_AIM * budget.epsilon)
    too_little, enough = 0.0, math.inf
    at = before = min(max(guess, low), high)
    known, trial = math.nan, 0
    while True:
        cost = spent(at)
        if cost <= budget.epsilon:
            enough = at
            if cost >= _USED * budget.epsilon or at <= low:
                return at
        elif at >= high:
            return math.inf
        else:
            too_little = at
        if enough <= too_little * _FINEST_RATIO:
            return enough
        found = math.log(cost) if 0.0 < cost < math.inf else math.nan
        secant = (found - known) / math.log(at / before) if at != before else math.nan
        slope = secant if 0.25 < secant / slope < 4.0 else slope
        before, known = at, found
        move = (wanted - found) / slope
        if not math.isfinite(move):
            move = math.log(2.0 if cost > budget.epsilon else 0.5)
        if too_little > 0.0 and enough < math.inf:
            whole = math.log(enough / too_little)
            share = 0.5 if trial > 4 and trial % 2 else (math.log(at / too_little) + move) / whole
            at = too_little * math.exp(whole * min(max(share, 0.01), 0.99))
        else:  # the farther, the longer no end of the bracket is found
            move *= 2.0 ** max(trial - 2, 0)
            at = min(max(at * math.exp(min(max(move, -_LONGEST_MOVE), _LONGEST_MOVE)), low), high)
        trial += 1


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

    def cost(steps: int) -> float:
        return pld.epsilon(extended(history, event, steps), budget.delta)

    most = _rdp_quota(event, budget, history)
    spent = cost(most)
    if spent > budget.epsilon:  # 0 by RDP, or a rounding error
        most, spent = 0, cost(0)
        if spent > budget.epsilon:
            return 0
    too_many, excess, trial = UNLIMITED + 1, math.inf, 0
    while too_many - most > 1:
        ended = too_many <= UNLIMITED
        if spent <= 0.0 or most == 0 or trial % 4 == 3 or (ended and math.isinf(excess)):
            steps = (most + too_many) // 2 if ended else 16 + 4 * most
        else:  # on a line in logarithms; a flat one, which overshoots, until there are two ends
            slope = math.log(excess / spent) / math.log(too_many / most) if ended else _FLAT
            growth = min(math.log(budget.epsilon / spent) / slope, math.log(UNLIMITED / most))
            steps = int(most * math.exp(growth)) + (not ended)
        steps, trial = min(max(steps, most + 1), too_many - 1), trial + 1
        found = cost(steps)
        if found <= budget.epsilon:
            most, spent = steps, found
        else:
            too_many, excess = steps, found
    return most


def _rdp_quota(event: Event, budget: PrivacyBudget, past: History) -> int:
    """Return a number of executions that RDP proves to fit: the start of the search."""
    left = np.array([rdp.to_divergence(budget.epsilon, budget.delta, order) for order in rdp.ORDERS])
    left -= rdp.compose(past)
    cost = np.maximum(rdp.rdp(event), float(np.finfo(float).tiny))
    with np.errstate(over="ignore", invalid="ignore"):
        affordable = float(np.floor(np.nan_to_num(left / cost)).max())  # NaN where both are infinite
    return int(min(max(affordable, 0.0), UNLIMITED))
