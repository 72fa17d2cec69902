"""From budgets to noise, or to numbers of steps, for a whole population at once.

>>> noise_multipliers([1.0, 2.0], 1e-5, sampling_rates=[0.01, 0.02], steps=[500, 1_000]).round(2).tolist()
[1.15, 1.48]

What `calibration` does for one client. Every answer is proved by `batch`, which also reads the odometers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from fedprivacy.accounting import contour, gdp
from fedprivacy.accounting.arrays import BoolArray, FloatArray, IntArray
from fedprivacy.accounting.batch import BatchComposer
from fedprivacy.accounting.calibration import LEAST_NOISE, MOST_NOISE, UNLIMITED
from fedprivacy.accounting.histories import checked, extended
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian

_FINEST = 1e-9  # distance of two places of a search below which they count as equal
_LONGEST_MOVE = math.log(4.0)
_AIM, _LEAST_SHARE = 0.9996, 0.999  # of epsilon: what a search aims at, and what noise spends at least
_MOST_TRIALS = 100
_USUAL_NOISE, _USUAL_STEPS = 0.3, 20  # from which on the contour integral is quick
_MOST_SHARPENED, _SHARP = 4, 0.02  # a move from so near arrives within the square of it
_TINY = float(np.finfo(float).tiny)


def noise_multipliers(
    epsilons: ArrayLike,
    deltas: ArrayLike,
    sampling_rates: ArrayLike,
    steps: ArrayLike,
    *,
    pasts: Sequence[History] | None = None,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE,
) -> FloatArray:
    """Smallest noise multipliers with which every client's releases stay within its budget.

    Args:
        epsilons: of the budgets, shape [clients]; here and in what follows, one number may stand for all clients.
        deltas: of the budgets.
        sampling_rates: q, in (0, 1].
        steps: numbers of Poisson-sampled Gaussian releases to come, at least 1.
        pasts: what each client has executed before; None: nothing.
        relation: the neighbouring relation of the events.

    Returns:
        Noise multipliers, shape [clients]. With them epsilon, past included, is at most the budget's, and at least
        99.9 % of it, or less where a bit less noise makes the bound jump beyond the budget (for tiny deltas, and rates
        below 10^-4).

    Raises:
        ValueError: names the first client whose budget is infinite or spent, is missed with a noise multiplier of 10^4,
            or met with one of 10^-2; or whose setting is out of range.
    """
    epsilon, delta, rates, counts = _for_each_client(pasts, epsilons, deltas, sampling_rates, steps)
    budget = _Budgets(epsilon, delta, pasts)
    _check(np.isfinite(budget.epsilons), "epsilon", budget.epsilons, "choose a finite number")
    _check((counts >= 1) & (counts == np.floor(counts)), "steps", counts, "choose a whole number, at least 1")
    _check((rates > 0.0) & (rates <= 1.0), "sampling_rate", rates, "choose a probability in (0, 1]")
    guess, slope = _noise_guess(budget, rates, counts)
    search = _Search(guess, slope, math.log(LEAST_NOISE), math.log(MOST_NOISE))
    if pasts is None:
        _sharpen(search, budget, rates, counts)
    left = np.arange(rates.size)
    for trial in range(_MOST_TRIALS):
        some = zip(rates[left].tolist(), np.exp(search.at[left]).tolist(), strict=True)
        events = [PoissonSampledGaussian(rate, noise, relation) for rate, noise in some]
        spent = budget.spent(BatchComposer(), events, counts[left], left)
        wanted = budget.epsilons[left]
        fits = spent <= wanted
        narrow = search.tried(left, fits, budget.excess(spent, left), halve=trial % 4 == 3)
        left = left[~(narrow | (fits & (spent >= _LEAST_SHARE * wanted)))]
        _refuse_limits(search, left, budget)
        if not left.size:
            break
    return np.asarray(np.exp(search.enough))


def step_quotas(
    events: Sequence[Event], epsilons: ArrayLike, deltas: ArrayLike, *, pasts: Sequence[History] | None = None
) -> IntArray:
    """Largest numbers of executions with which every client stays within its budget.

    Args:
        events: what each client will repeat.
        epsilons: of the budgets, past and future together, shape [clients], or one for all; may be infinite.
        deltas: of the budgets; likewise.
        pasts: what each client has executed before; None: nothing.

    Returns:
        n, shape [clients]: n executions fit and n + 1 do not; `UNLIMITED` if more would fit, 0 if the past has spent
        the budget.

    Raises:
        ValueError: a delta is outside (0, 1), or a client's events mix neighbouring relations.
    """
    epsilon, delta, _ = _for_each_client(pasts, epsilons, deltas, np.arange(len(events)))
    budget, composer = _Budgets(epsilon, delta, pasts), BatchComposer()
    fits, too_many = np.zeros(epsilon.size, dtype=np.int64), np.full(epsilon.size, UNLIMITED + 1)
    fits[~np.isfinite(budget.epsilons)] = UNLIMITED
    guess = -np.log(_steps_guess(budget, events))
    search = _Search(guess, np.full(guess.shape, -0.6), low=-math.log(UNLIMITED), high=0.0)
    left = np.flatnonzero(fits == 0)
    if pasts:
        left = left[budget.spent_before()[left] <= budget.epsilons[left]]
    trial = 0
    while left.size:
        steps = np.clip(np.exp(-search.at[left]).astype(np.int64), fits[left] + 1, too_many[left] - 1)
        search.at[left] = -np.log(steps)
        spent = budget.spent(composer, [events[client] for client in left.tolist()], steps, left)
        enough = spent <= budget.epsilons[left]
        fits[left], too_many[left] = np.where(enough, steps, fits[left]), np.where(enough, too_many[left], steps)
        trial += 1
        search.tried(left, enough, budget.excess(spent, left, aim=1.0), halve=trial % 4 == 0)
        left = left[too_many[left] - fits[left] > 1]
    return fits


class _Search:
    """One search for each client, for the least x at which epsilon, falling in x, fits.

    x is the logarithm of a noise multiplier, or minus that of a number of steps; `slope` is that of log epsilon.
    """

    def __init__(self, at: FloatArray, slope: FloatArray, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.at = np.clip(at, low, high)
        self.enough, self.too_little = np.full(at.shape, np.inf), np.full(at.shape, -np.inf)  # the ends of brackets
        self._slope = slope
        self._before, self._excess = np.full(at.shape, np.nan), np.full(at.shape, np.nan)

    def tried(self, clients: IntArray, fits: BoolArray, excess: FloatArray, *, halve: bool) -> BoolArray:
        """Note which trials fit, and move on: to the middle of the brackets, where they are left or `halve` says so.

        Returns which brackets are as narrow as may be, shape of `clients`.
        """
        at = self.at[clients]
        high = np.where(fits, np.minimum(self.enough[clients], at), self.enough[clients])
        low = np.where(fits, self.too_little[clients], np.maximum(self.too_little[clients], at))
        self.enough[clients], self.too_little[clients] = high, low
        self.learn(clients, excess)
        at = self.at[clients]
        outside = (at <= low) | (at >= high) | halve
        self.at[clients] = np.where(np.isfinite(high - low) & outside, 0.5 * (low + high), at)
        return np.asarray(high - low < _FINEST)

    def learn(self, clients: IntArray, excess: FloatArray) -> None:
        """Move to where a line through this trial and the one before has no excess."""
        at = self.at[clients]
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = (excess - self._excess[clients]) / (at - self._before[clients])
        slope = np.where((secant < -0.05) & (secant > -200.0), secant, self._slope[clients])
        self._slope[clients], self._before[clients], self._excess[clients] = slope, at, excess
        move = np.clip(-excess / slope, -_LONGEST_MOVE, _LONGEST_MOVE)
        self.at[clients] = np.clip(at + move, self.low, self.high)


@dataclass(frozen=True, slots=True)
class _Budgets:
    """What each client may spend, and what it has executed."""

    epsilons: FloatArray  # shape [clients]
    deltas: FloatArray  # shape [clients]
    pasts: Sequence[History] | None  # histories, one for each client; None: nothing was executed

    def __post_init__(self) -> None:
        _check(self.epsilons > 0.0, "epsilon", self.epsilons, "choose a positive number")
        _check((self.deltas > 0.0) & (self.deltas < 1.0), "delta", self.deltas, "choose a probability in (0, 1)")

    def spent(
        self, composer: BatchComposer, events: Sequence[Event], steps: ArrayLike, clients: IntArray
    ) -> FloatArray:
        """Epsilon of some clients after so many more executions of an event each, shape of `clients`."""
        more = np.asarray(steps, dtype=np.int64).tolist()
        pasts = [{}] * clients.size if self.pasts is None else [self.pasts[client] for client in clients.tolist()]
        histories = [extended(*grown) for grown in zip(pasts, events, more, strict=True)]
        return composer.epsilons(composer.counts(histories), self.deltas[clients])

    def spent_before(self) -> FloatArray:
        """Epsilon of every client's past, shape [clients]."""
        composer = BatchComposer()
        return composer.epsilons(composer.counts([checked(past) for past in self.pasts or []]), self.deltas)

    def excess(self, spent: FloatArray, clients: IntArray | slice = slice(None), aim: float = _AIM) -> FloatArray:
        """Logarithm of what was spent over what is aimed at."""
        return np.asarray(np.log(np.maximum(spent, _TINY) / (aim * self.epsilons[clients])))


def _noise_guess(budgets: _Budgets, rates: FloatArray, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Logarithms of noise multipliers by the central limit theorem (see `gdp`), and the slope of log epsilon there."""
    inverse_square = np.log1p(_mu_left(budgets) ** 2 / (rates**2 * steps))
    more, mu = _mu(1.05 * budgets.epsilons, budgets.deltas), _mu(budgets.epsilons, budgets.deltas)
    by_mu = np.log(more / mu) / math.log(1.05)
    by_noise = -inverse_square / -np.expm1(-inverse_square)
    return -0.5 * np.log(inverse_square), by_noise / by_mu


def _steps_guess(budgets: _Budgets, events: Sequence[Event]) -> FloatArray:
    """Numbers of steps, by the central limit theorem where there is one."""
    mu = np.array([gdp.mu({event: 1}) if isinstance(event, PoissonSampledGaussian) else 1.0 for event in events])
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(_mu_left(budgets) ** 2 / np.maximum(mu**2, _TINY), 1.0, UNLIMITED))


def _mu_left(budgets: _Budgets) -> FloatArray:
    """The parameter mu of Gaussian differential privacy that each budget leaves, about; shape [clients]."""
    squared = _mu(budgets.epsilons, budgets.deltas) ** 2
    if budgets.pasts is not None:
        squared -= _mu(budgets.spent_before(), budgets.deltas) ** 2
    return np.asarray(np.sqrt(np.maximum(squared, 1e-6)))


def _mu(epsilons: FloatArray, deltas: FloatArray) -> FloatArray:
    """mu of the Gaussian mechanism that is exactly (epsilon, delta)-private (Balle, Wang 2018), by bisection."""
    low, high = np.full(epsilons.shape, -20.0), np.full(epsilons.shape, 10.0)
    for _ in range(40):
        middle = 0.5 * (low + high)
        mu = np.exp(middle)
        with np.errstate(invalid="ignore", over="ignore"):
            first, second = log_ndtr(mu / 2.0 - epsilons / mu), epsilons + log_ndtr(-mu / 2.0 - epsilons / mu)
            too_large = first + np.log1p(-np.exp(np.minimum(second - first, 0.0))) > np.log(deltas)
        low, high = np.where(too_large, low, middle), np.where(too_large, middle, high)
    return np.asarray(np.exp(low))


def _sharpen(search: _Search, budgets: _Budgets, rates: FloatArray, steps: FloatArray) -> None:
    """Move the search to where the contour integral has epsilon: cheaper than the PLD, and nearly the same."""
    usual = np.flatnonzero((search.at > math.log(_USUAL_NOISE)) & (steps >= _USUAL_STEPS))
    for _ in range(_MOST_SHARPENED):
        if not usual.size:
            break
        spent = contour.epsilons(rates[usual], np.exp(search.at[usual]), steps[usual], budgets.deltas[usual])
        excess = budgets.excess(spent, usual)
        search.learn(usual, excess)
        usual = usual[np.abs(excess) > _SHARP]


def _refuse_limits(search: _Search, clients: IntArray, budgets: _Budgets) -> None:
    """Refuse budgets that the most noise misses, or the least meets, by the first of these clients."""
    missed, met = search.too_little[clients] >= search.high, search.enough[clients] <= search.low
    for client in clients[missed | met][:1]:
        limit = (
            f"{MOST_NOISE:g} does not meet, or its past has spent; choose a larger epsilon, fewer steps or a smaller "
            "sampling_rate."
            if search.too_little[client] >= search.high
            else f"{LEAST_NOISE:g} already meets: the budget asks for no noise; choose a smaller epsilon, or a delta "
            "well below sampling_rate * steps."
        )
        budget = f"epsilon is {budgets.epsilons[client]:g} at delta {budgets.deltas[client]:g}"
        raise ValueError(f"client {client}: {budget}, which a noise multiplier of {limit}")


def _for_each_client(pasts: Sequence[History] | None, *values: ArrayLike) -> list[FloatArray]:
    """Each value for every client, shape [clients]."""
    arrays = [np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in values]
    clients = np.broadcast_shapes(*(array.shape for array in arrays), (1 if pasts is None else len(pasts),))
    return [np.broadcast_to(array, clients) for array in arrays]


def _check(valid: BoolArray, name: str, values: FloatArray, remedy: str) -> None:
    for client in np.flatnonzero(~valid)[:1]:
        raise ValueError(f"client {client}: {name} is {values[client]}; {remedy}.")
