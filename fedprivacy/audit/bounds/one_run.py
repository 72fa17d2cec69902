"""Epsilon from guesses about many canaries of one run (Steinke, Nasr, Jagielski 2023, arXiv 2305.08846).

A fair coin decides for each of m canaries, independently, whether it is in. Who sees what the mechanism releases
guesses r of the coins and abstains from the others; v guesses are right. Theorem 5.2: were the mechanism
(epsilon, delta)-private for each canary, then

    Pr[at least v right] <= F(v) + 2 m delta max over i = 1 .. v of (F(v - i) - F(v)) / i,

F(v) = Pr[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v]. Nothing is assumed of the mechanism, and canaries may disturb
one another: that costs power only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, expit

from fedprivacy.audit.bounds.checks import check_confidence, check_guesses
from fedprivacy.audit.bounds.search import last_rejected

SHARE = 0.03
"""Share of the canaries that is guessed. Fixed before any is looked at: near the best for epsilons from 1 to 8."""

_LARGEST = 100.0  # epsilon, in nats; beyond, nothing is asked


def p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of so many right guesses, were the mechanism (epsilon, delta)-private.

    Args:
        correct: v, from 0 to r.
        guesses: r, from 0 to m.
        canaries: m.
        epsilon: in nats, >= 0.
        delta: probability in [0, 1].

    Raises:
        ValueError: the counts are impossible.
    """
    check_guesses(correct, guesses, canaries)
    chance = float(expit(epsilon))
    few = _at_least(np.array([correct]), guesses, chance)[0]
    if delta == 0.0 or correct == 0:
        return float(few)
    fewer = np.arange(1, correct + 1)
    steepest = ((_at_least(correct - fewer, guesses, chance) - few) / fewer).max()
    return float(min(1.0, few + 2.0 * canaries * delta * steepest))


def _at_least(counts: NDArray[np.int_], guesses: int, chance: float) -> NDArray[np.float64]:
    """F: the probability of at least so many right guesses, each right with `chance`."""
    return np.asarray(np.where(counts > 0, bdtrc(np.maximum(counts, 1) - 1.0, guesses, chance), 1.0))


def epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at `delta`, in nats: what is larger, the guesses do not refute.

    Without delta and with every guess right it is log(a / (1 - a)), a the r-th root of 1 - confidence. Assumption: how
    many are guessed was decided before looking at who was in; see `guessed`.

    Raises:
        ValueError: the counts are impossible, or confidence is outside (0, 1).
    """
    check_confidence(confidence)
    return last_rejected(lambda e: p_value(correct, guesses, canaries, e, delta) <= 1.0 - confidence, 0.0, _LARGEST)


def guessed(scores: NDArray[np.float64], members: NDArray[np.bool_], share: float = SHARE) -> tuple[int, int, int]:
    """Right guesses, guesses and canaries, where those with the largest scores are guessed to be in.

    Args:
        scores: from the releases alone, larger where a canary seems to be in, shape [canaries].
        members: what the coins said, shape [canaries].
        share: of the canaries that is guessed, decided before looking at who was in.
    """
    guesses = max(1, int(share * scores.size))
    largest = np.argsort(-scores, kind="stable")[:guesses]
    return int(members[largest].sum()), guesses, scores.size
