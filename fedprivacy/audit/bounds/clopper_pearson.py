"""Epsilon from an attack's false positives and false negatives (Jagielski et al. 2020; Nasr et al. 2021, 2023).

Whoever decides, from what an (epsilon, delta)-private mechanism releases, whether a record was in, has error rates with

    1 - FNR <= e^epsilon FPR + delta    and    1 - FPR <= e^epsilon FNR + delta

(Kairouz, Oh, Viswanath 2015). Rates are known from counts: their upper ends are the binomial ones of Clopper and
Pearson (1934), which are exact.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from fedprivacy.audit.bounds.checks import check_confidence


def largest_rate(errors: int, trials: int, risk: float) -> float:
    """The rate of errors that is not exceeded, but for a probability of `risk` (Clopper, Pearson 1934).

    The largest p with Pr[Binomial(trials, p) <= errors] >= risk.
    """
    return 1.0 if errors >= trials else float(betaincinv(errors + 1, trials - errors, 1.0 - risk))


def epsilon(
    false_positives: int, absent: int, false_negatives: int, present: int, *, delta: float, confidence: float
) -> float:
    """Lower bound on epsilon at `delta` from the errors of a test that was fixed before it was tried.

    The largest of log((1 - delta - FPR) / FNR) and log((1 - delta - FNR) / FPR), with upper ends for both rates, each
    of which fails with half of 1 - confidence.

    Assumptions: the trials are independent, and the test was chosen without looking at them; see `of_scores`.

    Args:
        false_positives: how many absent records were held to be in.
        absent: how many absent records were tried.
        false_negatives: how many present records were held to be absent.
        present: how many present records were tried.
        delta: probability in [0, 1).
        confidence: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0.
    """
    check_confidence(confidence)
    risk = 0.5 * (1.0 - confidence)
    fpr, fnr = largest_rate(false_positives, absent, risk), largest_rate(false_negatives, present, risk)
    return max(0.0, _log_ratio(1.0 - delta - fpr, fnr), _log_ratio(1.0 - delta - fnr, fpr))


def of_scores(present: NDArray[np.float64], absent: NDArray[np.float64], delta: float, confidence: float) -> float:
    """Lower bound on epsilon at `delta` from the scores of canaries.

    One score of four helps to choose a threshold, the one with which these have the largest bound; the others try it.
    So no correction is needed for the choice.

    Assumptions: scores are independent, those of present canaries of one distribution and those of absent ones of
    another, in an order that knows nothing of them.

    Args:
        present: scores of canaries that were in, shape [present]; larger ones speak for it.
        absent: scores of canaries that were not, shape [absent].
        delta: probability in [0, 1).
        confidence: probability in (0, 1).

    Returns:
        Epsilon in nats, >= 0; 0 where there are no four scores of each.
    """
    if min(present.size, absent.size) < _CHOOSING:
        return 0.0
    choosing = np.concatenate([present[::_CHOOSING], absent[::_CHOOSING]])

    def bound(threshold: float, left_in: NDArray[np.float64], left_out: NDArray[np.float64]) -> float:
        wrong, lost = int((left_out >= threshold).sum()), int((left_in < threshold).sum())
        return epsilon(wrong, left_out.size, lost, left_in.size, delta=delta, confidence=confidence)

    candidates = np.unique(np.quantile(choosing, np.linspace(0.0, 1.0, _THRESHOLDS)))
    chosen = max(candidates, key=lambda threshold: bound(threshold, present[::_CHOOSING], absent[::_CHOOSING]))
    trying = (np.delete(scores, slice(None, None, _CHOOSING)) for scores in (present, absent))
    return bound(chosen, *trying)


_CHOOSING = 4  # one of so many scores helps to choose the threshold
_THRESHOLDS = 201  # candidates: quantiles of the scores that choose


def _log_ratio(chance: float, error: float) -> float:
    return math.log(chance / error) if chance > 0.0 else 0.0
