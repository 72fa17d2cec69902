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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedprivacy.accounting import gdp, pld, rdp
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.estimates import estimate_noise
from fedprivacy.accounting.histories import UNLIMITED, Executed, extend_history
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian

LEAST_NOISE, MOST_NOISE = 1e-2, 1e4  # smallest and largest noise multiplier of the search
_USED = 0.999  # minimum share of epsilon that a calibrated noise multiplier spends
_AIM = 0.9995
_RAREST = 1e9  # inverse of the smallest sampling rate that is tried
_FLAT = 0.45  # slope of log epsilon by log n, less than the usual one
_LEAST_LEFT = 1e-6  # share of the square of mu, for a guess
_LONGEST_MOVE = math.log(16.0)
_LARGEST_INVERSE = 26.0  # e to its square is finite
_DOUBT = 1e-4  # relative difference, ten times the largest, of epsilons by `batch` from those by `pld`
_MOST_REMEMBERED = 2**16
_FINEST_RATIO = 1.0 + 1e-9  # ratio of two noise multipliers below which they count as equal

_Key = TypeVar("_Key")
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


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
    executed = frozenset((past or {}).items())
    return alone(noise_multipliers([Calibration(budget, sampling_rate, steps, relation, executed)]))


class Calibration(NamedTuple):
    """The arguments of `noise_multiplier`, for `noise_multipliers`."""

    budget: PrivacyBudget
    sampling_rate: float
    steps: int
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE
    past: Executed = frozenset()

    @property
    def setting(self) -> str:
        """The beginning of an error."""
        return (
            f"epsilon is {self.budget.epsilon} at delta {self.budget.delta} for {self.steps} steps at sampling_rate "
            f"{self.sampling_rate}"
        )

    def history(self, noise: float) -> History:
        """The past and the releases with this noise multiplier."""
        event = PoissonSampledGaussian(self.sampling_rate, noise, self.relation)
        return extend_history(dict(self.past), event, self.steps)

    def before(self) -> float:
        """Return the epsilon of the past; raise a `ValueError` where no noise is enough or none can be sought."""
        check_solvable(self.budget, self.steps)
        self.history(1.0)  # refuses what is out of range
        before = pld.epsilon(dict(self.past), self.budget.delta)
        if before >= self.budget.epsilon:
            raise ValueError(f"{self.setting}, and the past alone has spent {before:.6g}; choose a larger epsilon.")
        return before


def noise_multipliers(calibrations: Sequence[Calibration]) -> list[float | ValueError]:
    """Return the noise multiplier for each calibration, or the error, that `noise_multiplier` returns or raises.

    Each is the same in any company; hundreds take a fraction of the time that they take one by one, and what was found
    is remembered.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    >>> found = noise_multipliers([Calibration(budget, rate, 1_000) for rate in (0.01, 0.02, 0.03)])
    >>> [round(noise, 2) for noise in found if isinstance(noise, float)]
    [0.96, 1.48, 2.06]
    """
    found: dict[Calibration, float | ValueError] = {one: REMEMBERED[one] for one in calibrations if one in REMEMBERED}
    before: dict[Calibration, float] = {}
    for calibration in dict.fromkeys(calibrations):
        if calibration not in found:
            try:
                before[calibration] = calibration.before()
            except ValueError as problem:
                found[calibration] = problem
    guesses = _guessed_noise(before)
    searches = {one: _noise(one, guess, slope) for one, guess, slope in zip(before, *guesses, strict=True)}
    found |= _side_by_side(searches, _costs)
    if len(REMEMBERED) > _MOST_REMEMBERED:
        REMEMBERED.clear()
    REMEMBERED.update((one, noise) for one in before if isinstance(noise := found[one], float))
    return [found[calibration] for calibration in calibrations]


REMEMBERED: dict[Calibration, float] = {}
"""Noise multipliers that solve calibrations."""

NoiseSearch = Generator[Calibration, float, float]
"""Search for a noise multiplier: it yields calibrations, and is sent the noise multipliers that solve them."""


def solve(searches: Sequence[NoiseSearch]) -> list[float | ValueError]:
    """Return the noise multiplier, or the error, with which each search ends; calibrations are solved together."""
    found = _side_by_side(dict(enumerate(searches)), lambda asked: noise_multipliers(list(asked.values())))
    return [found[place] for place in range(len(searches))]


def alone(found: Sequence[float | ValueError]) -> float:
    """Return the one number that was found, or raise the one error."""
    (one,) = found
    if isinstance(one, ValueError):
        raise one
    return one


def _side_by_side(
    searches: Mapping[_Key, Generator[_Asked, _Answer, float]],
    answers: Callable[[Mapping[_Key, _Asked]], Iterable[_Answer | ValueError]],
) -> dict[_Key, float | ValueError]:
    """Run searches to their ends; what they ask at a time is answered together."""
    found: dict[_Key, float | ValueError] = {}
    replies: dict[_Key, Any] = dict.fromkeys(searches)
    while replies:
        asked: dict[_Key, _Asked] = {}
        for key, reply in replies.items():
            try:
                ask = searches[key].throw if isinstance(reply, ValueError) else searches[key].send
                asked[key] = ask(reply)
            except StopIteration as end:
                found[key] = end.value
            except ValueError as problem:
                found[key] = problem
        replies = dict(zip(asked, answers(asked), strict=True))
    return found


def _costs(noises: Mapping[Calibration, float]) -> list[float]:
    """Return epsilons of calibrations with these noise multipliers: together where there is no past."""
    histories = {one: one.history(noise) for one, noise in noises.items()}
    costs = {one: pld.epsilon(histories[one], one.budget.delta) for one in noises if one.past}
    together = [one for one in noises if not one.past]
    composer = BatchComposer()
    counts = composer.counts([histories[one] for one in together])
    epsilons = composer.epsilons(counts, np.array([one.budget.delta for one in together]))
    costs |= zip(together, epsilons.tolist(), strict=True)
    return [costs[one] for one in noises]


def _guessed_noise(before: Mapping[Calibration, float]) -> tuple[list[float], list[float]]:
    """Guess noise multipliers after pasts that cost so much, and the slopes of log epsilon by their logarithms."""
    settings = [
        (
            _AIM * one.budget.epsilon,
            one.budget.delta,
            one.sampling_rate,
            one.steps,
            gdp.gaussian_mu(spent, one.budget.delta) ** 2 if spent > 0.0 else 0.0,
        )
        for one, spent in before.items()
    ]
    noises, slopes = estimate_noise(*np.array(settings, dtype=np.float64).reshape(-1, 5).T)
    sensitivities = [PoissonSampledGaussian(1.0, 1.0, one.relation).sensitivity for one in before]
    return (noises * sensitivities).tolist(), slopes.tolist()


def _noise(calibration: Calibration, guess: float, slope: float) -> Generator[float, float, float]:
    """Search a calibration's noise multiplier: `_search` from a guess, with an error where there is none."""
    doubt = 0.0 if calibration.past else _DOUBT
    noise = yield from _search(calibration.budget.epsilon, (LEAST_NOISE, MOST_NOISE), guess, slope, doubt)
    if math.isinf(noise):
        raise ValueError(
            f"{calibration.setting}, which a noise multiplier of {MOST_NOISE:g} does not meet; choose a larger "
            "epsilon, fewer steps or a smaller sampling_rate."
        )
    if noise <= LEAST_NOISE:
        raise ValueError(
            f"{calibration.setting}, which a noise multiplier of {LEAST_NOISE:g} already meets: the budget asks for no "
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

    root = math.sqrt(steps * math.expm1(min(1.0 / noise_multiplier, _LARGEST_INVERSE) ** 2))
    whole = gdp.gaussian_mu(budget.epsilon, budget.delta)
    gone = gdp.gaussian_mu(before, budget.delta) if 0.0 < before < budget.epsilon else 0.0
    left = whole * math.sqrt(max(1.0 - (gone / whole) ** 2, _LEAST_LEFT))  # squares of mu add up, roughly
    search = _search(budget.epsilon, (1.0, _RAREST), root / left, slope=-1.0)

    def costs(inverses: Mapping[None, float]) -> Iterator[float]:
        for inverse in inverses.values():
            sampled = replace(event, sampling_rate=min(1.0, 1.0 / inverse))
            yield pld.epsilon(extend_history(past, sampled, steps), budget.delta)

    inverse = alone(list(_side_by_side({None: search}, costs).values()))
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


def _search(
    epsilon: float, limits: tuple[float, float], guess: float, slope: float, doubt: float = 0.0
) -> Generator[float, float, float]:
    """Search an x within limits that uses the wanted share of epsilon and no more; infinite if none is so large.

    Yields x for which it is sent the cost, which falls as x grows, with a `doubt` relative to it. The cost's logarithm
    by that of x is nearly a line, of the given slope at the guess: few secants suffice. The bracket found so far bounds
    them.
    """
    low, high = limits
    wanted, most, least = math.log(_AIM * epsilon), (1.0 - doubt) * epsilon, (_USED + doubt) * epsilon
    too_little, enough = 0.0, math.inf
    at = before = min(max(guess, low), high)
    known, trial = math.nan, 0
    while True:
        cost = yield at
        if cost <= most:
            enough = at
            if cost >= least or at <= low:
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
            move = math.log(2.0 if cost > epsilon else 0.5)
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
    history = extend_history(past, event, 0)
    if not budget.enforced:
        return UNLIMITED

    def cost(steps: int) -> float:
        return pld.epsilon(extend_history(history, event, steps), budget.delta)

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
