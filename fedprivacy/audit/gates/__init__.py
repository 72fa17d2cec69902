"""The gates: checks of the client that really runs, each of which passes or fails and says what it proves.

Every gate is a function `check(audited) -> Gate`. It asks the real ClientApp and judges by what left it, with tests
that rarely fail by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fedprivacy.audit.findings import Gate
from fedprivacy.audit.real_client import NoUpdateError

FALSE_ALARM = 1e-6
"""Probability that a statistical gate fails on correct code, all of its tests together."""

_LONGEST, _FEWEST_PRODUCTS = 2**20, 1000
"""Draws of a row in which echoes are looked for, and of how many products a sum must be."""

MOST_REASONS = 4
"""Maximum number of reasons that a gate gives; an exact check that has found so many need not go on."""

_NO_UPDATE = "A client sent no update for some records, though it does for others: that it has them shows."

Audited = TypeVar("Audited")
"""The subject that a gate checks."""

More = ParamSpec("More")
"""Other things that a check takes beside its subject."""

TOLERANCE = 1e-3
"""Relative tolerance between accountants, which round differently."""


@dataclass(slots=True)
class Alarms:
    """The tests of a gate.

    Formal guarantee: if each p-value is at most x with probability at most x where nothing is wrong, `reasons` is empty
    but for a probability of `FALSE_ALARM`, by the union bound over all tests that were made (Bonferroni). How the tests
    depend on one another does not matter.
    """

    found: list[tuple[float, str]] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)

    def test(self, p_value: float, reason: str) -> None:
        """A test whose p-value is this, and what is wrong if it is too small."""
        self.found.append((float(p_value), reason))

    def must(self, holds: bool, reason: str) -> None:
        """Something that is never otherwise where nothing is wrong."""
        if not holds:
            self.exact.append(reason)

    @property
    def p_value(self) -> float | None:
        """The smallest p-value, times the number of tests; None: all that was checked, or that failed, is exact."""
        if self.exact or not self.found:
            return None
        return min(1.0, len(self.found) * min(p for p, _ in self.found))

    @property
    def reasons(self) -> list[str]:
        """Reasons of the tests that failed, the clearest first; of those as clear, the shortest says most."""
        limit = FALSE_ALARM / max(len(self.found), 1)
        failed = sorted((p, len(reason), reason) for p, reason in self.found if not p > limit)
        return [*self.exact, *(reason for *_, reason in failed)]


def rms(draws: ArrayLike) -> float:
    """The root mean square of draws: their deviation, where their mean is zero."""
    return float(np.sqrt(np.mean(np.square(draws))))


def p_value_of_counts(counts: ArrayLike, trials: ArrayLike, chance: ArrayLike, *, at_most: bool = False) -> float:
    """Two-sided p-value of the most extreme of some binomial counts, by the union bound over them.

    `at_most`: the one-sided p-value of the largest, where the chance may be smaller.
    """
    counts, trials, chance = np.broadcast_arrays(counts, trials, chance)
    if counts.size == 0:
        return 1.0
    low, high = stats.binom.cdf(counts, trials, chance), stats.binom.sf(counts - 1, trials, chance)
    tails = high if at_most else 2.0 * np.minimum(low, high)
    return float(min(1.0, counts.size * tails.min()))


def p_value_of_variance(draws: ArrayLike, *, at_least: bool = False) -> float:
    """Two-sided p-value of the mean square of independent standard Gaussian draws.

    `at_least`: the one-sided p-value of a small one, where something may have been added to them.
    """
    draws = np.asarray(draws, dtype=np.float64)
    squares = float(np.square(draws).sum())
    low, high = float(stats.chi2.cdf(squares, draws.size)), float(stats.chi2.sf(squares, draws.size))
    return low if at_least else min(1.0, 2.0 * min(low, high))


def p_value_of_correlations(rows: ArrayLike) -> tuple[float, tuple[int, int]]:
    """P-value of the largest correlation of any two independent Gaussian rows [rows, d], and which two they are.

    Given one row, its product with another one's direction is Student-t after the usual transformation.
    """
    rows = np.asarray(rows, dtype=np.float64)
    directions = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    cosines = np.abs(np.triu(directions @ directions.T, 1))
    one, other = np.unravel_index(int(cosines.argmax()), cosines.shape)
    cosine, free = min(float(cosines[one, other]), 1.0 - 1e-15), rows.shape[1] - 1
    pairs = len(rows) * (len(rows) - 1) / 2
    p_value = 2.0 * stats.t.sf(cosine * math.sqrt(free / (1.0 - cosine**2)), free)
    return float(min(1.0, pairs * p_value)), (int(one), int(other))


def p_value_of_echoes(rows: ArrayLike) -> float:
    """P-value of the largest autocorrelation of independent Gaussian rows [rows, d], over all lags alike in all rows.

    With x standard Gaussian, the sum over n products of draws that are one lag apart is beyond z sqrt(n) with a
    probability of at most exp(-z^2 / 2 + z^4 / n), for z^2 <= n / 4: Chernoff's bound, since the eigenvalues of the
    shift's symmetric part are cosines. Lags of few products are left out.
    """
    rows = np.asarray(rows, dtype=np.float64)[:, :_LONGEST]
    count, d = rows.shape
    spectrum = np.fft.rfft(rows, 2 * d, axis=1)
    sums = np.fft.irfft((np.abs(spectrum) ** 2).sum(axis=0))[1:d]
    products = count * np.arange(d - 1, 0, -1)
    enough = products >= _FEWEST_PRODUCTS
    if not enough.any():
        return 1.0
    squares = np.minimum(np.square(sums[enough]) / products[enough], products[enough] / 4.0)
    exponents = -squares / 2.0 + np.square(squares) / products[enough]
    return float(min(1.0, 2.0 * enough.sum() * np.exp(min(float(exponents.min()), 0.0))))


class Said(NamedTuple):
    """Words of a gate for one subject, where they differ from its usual ones.

    Attributes:
        proves: in words, what holds if it passes.
        assumes: conditions under which it proves that.
    """

    proves: str
    assumes: str


class Judged(NamedTuple):
    """Result of a gate's check: the number that decided, what is wrong, and a p-value unless the check is exact."""

    statistic: float
    reasons: Sequence[str]
    p_value: float | None = None


def gate(
    name: str, *, proves: str, assumes: str
) -> Callable[[Callable[Concatenate[Audited, More], Judged]], Callable[Concatenate[Audited, More], Gate]]:
    """Turn a check into a gate, which passes if there is no reason against it; of many reasons, it gives the first few.

    A client that sends no update, although nothing is wrong with the request, fails the gate that asked. A subject may
    have its own words for a gate, in `said`, by the gate's name.
    """

    def as_gate(check: Callable[Concatenate[Audited, More], Judged]) -> Callable[Concatenate[Audited, More], Gate]:
        @wraps(check)
        def checked(audited: Audited, /, *more: More.args, **named: More.kwargs) -> Gate:
            try:
                judged = check(audited, *more, **named)
            except NoUpdateError:
                judged = Judged(math.inf, [_NO_UPDATE])
            said: Said = getattr(audited, "said", {}).get(name, Said(proves, assumes))
            return verdict(name, said.proves, said.assumes, judged)

        return checked

    return as_gate


def verdict(name: str, proves: str, assumes: str, judged: Judged) -> Gate:
    """A gate that passes if there is no reason why not; each is given once, the first few of them."""
    reasons = tuple(dict.fromkeys(judged.reasons))[:MOST_REASONS]
    return Gate(
        name=name,
        proves=proves,
        passed=not reasons,
        statistic=judged.statistic,
        p_value=judged.p_value,
        assumptions=assumes,
        reasons=reasons,
    )


def too_low(stated: float, spent: float) -> bool:
    """Return whether a stated epsilon is less than what was spent, by more than accountants may differ."""
    return not stated >= spent * (1.0 - TOLERANCE) - 1e-6
