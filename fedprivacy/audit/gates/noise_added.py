"""Noise: whether what is added to a sum is Gaussian, as large as claimed, everywhere, and never the same twice."""

from __future__ import annotations

import numpy as np
from scipy import stats

from fedprivacy.audit.gates.alarms import Alarms, of_correlations, of_counts, of_echoes, of_variance, rms
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.subject import ObservedNoise, Subject

_FAR, _VERY_FAR = 3.5, 4.0
"""Standard deviations from which on a draw is in the tails: of few draws, and of many."""

_MANY = 1_000_000
"""Number of draws of which enough are very far."""

_MOST_SHAPED = 200_000
"""Number of draws whose distribution is tested."""

_NEAR = 0.05
"""Noise of at least the claimed size is no more than noise, and Gaussian, if its size is so near to the claimed one."""


@gate(
    "noise",
    proves="Every release carries Gaussian noise of the claimed size in every coordinate, drawn anew each time.",
    assumes="Releases without records show the noise that releases with records carry.",
)
def check(subject: Subject) -> Judged:
    """Check whether every release carries the noise that is claimed for it."""
    alarms, sizes = Alarms(), list[float]()
    for noise in subject.noise(alarms):
        judge(alarms, noise)
        sizes.append(rms(noise.rows))
    return Judged(min(sizes, default=0.0), alarms.reasons, alarms.p_value)


def judge(alarms: Alarms, noise: ObservedNoise) -> None:
    """Test noise of one model, by layer and altogether."""
    rows, of, least = noise.rows, noise.of, noise.at_least
    must = f"it must be 1{' at least' if least else ''}"
    parts = np.split(rows, np.cumsum([*noise.layers.values()])[:-1], axis=1) if noise.layers else []
    for layer, part in zip(noise.layers, parts, strict=True):
        size = rms(part)
        alarms.test(
            of_variance(part, at_least=least), f"The noise in {layer}{of} is {size:.3g} times what is claimed; {must}."
        )
        quietest = part.shape[1] * stats.chi2.cdf(np.square(part).sum(axis=0).min(), len(part))
        alarms.test(
            min(1.0, quietest), f"One number or more in {layer}{of} is released with hardly any noise, or none."
        )
    size = rms(rows)
    alarms.test(of_variance(rows, at_least=least), f"The noise{of} is {size:.4g} times what is claimed; {must}.")
    if len(rows) > 1:
        _test_alike(alarms, noise)
    draws = rows.ravel()
    shape = f"The noise{of} is not Gaussian, which is what is accounted for."
    if not least or abs(size - 1.0) < _NEAR:
        alarms.test(float(stats.kstest(draws[:_MOST_SHAPED], stats.norm.cdf).pvalue), shape)
    if least and abs(size - 1.0) >= _NEAR:
        return
    rows = rows / size if least else rows
    alarms.test(of_echoes(rows), f"The noise{of} repeats itself within a release: a server could subtract it.")
    far = _FAR if draws.size < _MANY else _VERY_FAR
    alarms.test(of_counts(int((np.abs(rows) > far).sum()), draws.size, 2.0 * stats.norm.sf(far)), shape)
    if len(rows) > 1 and not least:
        p_value, pair = of_correlations(rows)
        one, other = (noise.about[number] for number in pair)
        alarms.test(p_value, f"The noise of {one} can be told from that of {other}: a server could subtract it.")


def _test_alike(alarms: Alarms, noise: ObservedNoise) -> None:
    """Test whether no release has less noise than others, nor more if it must be exact."""
    squares, d = np.square(noise.rows).sum(axis=1), noise.rows.shape[1]
    least, most = int(squares.argmin()), int(squares.argmax())
    spread = stats.chi2.cdf(squares[least], d)
    if not noise.at_least:
        spread = 2.0 * min(spread, stats.chi2.sf(squares[most], d))
    quiet, loud = (f"{rms(noise.rows[n]):.3g} times what is claimed in {noise.about[n]}" for n in (least, most))
    alarms.test(min(1.0, len(squares) * spread), f"The noise is not alike in all releases: {quiet}, {loud}.")
