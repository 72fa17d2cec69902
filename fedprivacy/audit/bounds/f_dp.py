"""Noise from guesses about many canaries of one run, by trade-off functions (Mahloujifar, Melis, Chaudhuri 2024,
arXiv 2410.22235; their algorithm 3, for coins).

The guesses are those of `one_run`; what differs is the claim that they refute: a whole trade-off function instead of
one (epsilon, delta). Let p_k be the probability of exactly k right guesses out of r about m canaries. Take one canary
at random and turn its coin over: where its guess was right and k were right in all, k - 1 are right now. A mechanism
under which an event of probability y has at least `least(y)` on a neighbouring shard therefore keeps, for every i,

    sum over k >= i of (r - k) p_k / m  >=  least(sum over k > i of k p_k / m).

From the claim that v or more are right with probability a, these inequalities give the least that all probabilities
can add up to, from k = v down to 0. Where that is more than 1, the probability was below a: the claim is refuted.
"""

from __future__ import annotations

from collections.abc import Callable

from scipy.special import ndtr, ndtri

from fedprivacy.accounting.gdp import gaussian_epsilon
from fedprivacy.accounting.histories import check_delta
from fedprivacy.audit.bounds.checks import check_confidence, check_guesses
from fedprivacy.audit.bounds.search import last_rejected

_LARGEST_MU = 40.0


Least = Callable[[float], float]
"""The least probability, on a neighbouring shard, of an event with a given probability: a trade-off function."""


def gaussian(mu: float) -> Least:
    """Return the trade-off function of N(mu, 1) against N(0, 1): Phi(Phi^-1(chance) - mu) (Dong, Roth, Su 2022)."""
    return lambda chance: float(ndtr(ndtri(chance) - mu))


def refuted(correct: int, guesses: int, canaries: int, least: Least, risk: float) -> bool:
    """Return whether so many right guesses, or more, have a probability below `risk` under the claim.

    Args:
        correct: v, from 0 to r.
        guesses: r, from 0 to m.
        canaries: m.
        least: the trade-off function that the mechanism is said to have, or a worse one.
        risk: level of the test.

    Raises:
        ValueError: the counts are impossible.
    """
    check_guesses(correct, guesses, canaries)
    right, wrong = risk * correct / canaries, risk * (guesses - correct) / canaries
    whole = guesses / canaries
    for k in range(correct - 1, -1, -1):
        more = max(wrong, least(right))
        right += k / (guesses - k) * (more - wrong)
        wrong = more
        if right + wrong > whole:
            return True
    return False


def least_mu(correct: int, guesses: int, canaries: int, confidence: float) -> float:
    """Lower bound on the mu of a mechanism whose trade-off function is a Gaussian one; 0 where none is refuted.

    Raises:
        ValueError: the counts are impossible, or confidence is outside (0, 1).
    """
    check_confidence(confidence)
    risk = 1.0 - confidence
    return last_rejected(lambda mu: refuted(correct, guesses, canaries, gaussian(mu), risk), 0.0, _LARGEST_MU)


def epsilon(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at `delta`, in nats, by the exact epsilon of the Gaussian mechanism with `least_mu`.

    Assumption: the trade-off function is Gaussian. Without sampling it is. With Poisson samples it is in the limit of
    many steps, and before that the Gaussian which rates of errors of some percent show has a smaller epsilon at a small
    delta than the mechanism: what is lost by the assumption is tightness.

    Raises:
        ValueError: as `least_mu`, or delta is outside (0, 1).
    """
    check_delta(delta)
    return gaussian_epsilon(least_mu(correct, guesses, canaries, confidence), delta)
