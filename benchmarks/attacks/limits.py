"""The most that any membership attack can find where training is differentially private.

An attack on one record is a test between two neighbouring shards. Where its false positive rate is a, its true positive
rate is at most e^epsilon a + delta and at most 1 - e^-epsilon (1 - delta - a), for every pair (epsilon, delta) that
holds (Kairouz, Oh, Viswanath 2015). The accountant knows many such pairs; the least of their limits is the trade-off
function of the training (Dong, Roth, Su 2022).

The limit holds for the mean over records, too, because it is concave, if each record was made a member by a coin of its
own. What is measured on finitely many records may lie above it by chance.

>>> round(float(limit(0.001, epsilon=3.0, delta=1e-5)), 4)
0.0201
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.attacks.roc import Roc, clopper_pearson
from fedprivacy.accounting import pld
from fedprivacy.values.events import History

_DELTAS = np.concatenate([np.logspace(-9.0, -2.0, 29), np.linspace(0.015, 0.985, 98), 1.0 - np.logspace(-2.0, -6.0, 9)])
"""At which the accountant is asked; between two of them the limit is a little above the trade-off function."""

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""False positive rates at which a curve is held against the limit."""


def limit(false_positive_rates: ArrayLike, *, epsilon: float, delta: float) -> NDArray[np.float64]:
    """The largest true positive rate that (epsilon, delta)-differential privacy allows at each false positive rate.

    Args:
        false_positive_rates: each in [0, 1], of any shape.
        epsilon: in nats, maybe infinite.
        delta: in [0, 1].

    Returns:
        Rates in [0, 1], the same shape.
    """
    rates = np.asarray(false_positive_rates, dtype=np.float64)
    if math.isinf(epsilon):
        return np.ones_like(rates)
    from_above = -math.expm1(-epsilon) + math.exp(-epsilon) * (rates + delta)
    return np.minimum(np.minimum(math.exp(min(epsilon, 700.0)) * rates + delta, from_above), 1.0)


def limit_of(history: History, false_positive_rates: ArrayLike) -> NDArray[np.float64]:
    """The largest true positive rate that a training allows at each false positive rate, by its trade-off function.

    It is an upper bound: every pair (epsilon, delta) is one (`fedprivacy.accounting.pld`).

    Args:
        history: how often each event was executed; empty: nothing was learned.
        false_positive_rates: each in [0, 1], of any shape.

    Returns:
        Rates in [0, 1], the same shape.
    """
    rates = np.asarray(false_positive_rates, dtype=np.float64)
    if not history:
        return rates
    limits = [limit(rates, epsilon=pld.epsilon(history, delta), delta=delta) for delta in _DELTAS.tolist()]
    return np.asarray(np.min(limits, axis=0))


def breaches(roc: Roc, history: History, confidence: float = 0.999) -> tuple[float, ...]:
    """Where an attack found more members than its training allows, beyond what is chance.

    At each of `RATES` the lower end of the true positive rate is held against the limit at the upper end of the false
    positive rate; the confidence is shared out over all these ends. They take the records as independent and the
    thresholds as given: this is a reading for people, and proves no epsilon.

    Args:
        roc: what was measured.
        history: what one training executed.
        confidence: that none is named where the limit holds.

    Returns:
        Those of `RATES` where the limit is passed, ascending.
    """
    each = 1.0 - (1.0 - confidence) / (2 * len(RATES))
    found = [roc.at(rate, each) for rate in RATES]
    alarms = [round(rate.false_positive_rate * roc.others) for rate in found]
    most = limit_of(history, [clopper_pearson(count, roc.others, each)[1] for count in alarms])
    return tuple(rate for rate, one, allowed in zip(RATES, found, most, strict=True) if one.low > allowed)
