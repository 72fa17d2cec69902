"""Attacks held against the most that any attack can find where training is differentially private.

The limit is the trade-off function of the training (`fedprivacy.accounting.risk`). It holds for the mean over records,
too, because it is concave, if each record was made a member by a coin of its own. What is measured on finitely many
records may lie above it by chance.
"""

from __future__ import annotations

from benchmarks.attacks.roc import Roc, clopper_pearson
from fedprivacy.accounting.risk import Risk
from fedprivacy.values.events import History

DELTA = 1e-5
"""Delta of every epsilon in these benchmarks; a limit comes from the whole trade-off curve and hardly depends on it."""

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""False positive rates at which a curve is held against the limit."""


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
    most = Risk.of_history(history, DELTA).found([clopper_pearson(count, roc.others, each)[1] for count in alarms])
    return tuple(rate for rate, one, allowed in zip(RATES, found, most, strict=True) if one.low > allowed)
