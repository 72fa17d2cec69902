"""Noise: whether what is added to a sum is as large as it is claimed, in every layer, and drawn anew each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.apps.audited_app import EVERY, SILENT, AuditedApp, rows_of
from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.subject import Effort

Rows = NDArray[np.float64]

_LEAST_DRAWS = 4000
"""Of the noise, as far as so many trainings give them: enough to notice a tenth too little."""

_ROUNDS, _STEPS = 6, 4
"""Of one app that is seeded once, and of one round."""

_STILL = 1e-6
"""By what the learning rate is multiplied so that steps do not move the model."""

_SAMPLED = 16
"""Trainings with samples."""

_NEAR = 0.05
"""Noise whose deviation is so near to what is claimed is no more than noise: its shape is tested."""

_MOST_SHAPED = 50_000

_SILENCE = 1e-3
"""A sum that its noise moves by less than this share of what is claimed has none."""

_ALIKE = 0.05
"""Two sums are suspected of the same noise whose squared difference is at most this share of the usual."""

_SAME = 1e-6
"""Or at most this share of the claimed noise: rounding."""


@gate(
    "noise",
    proves="Every sum carries Gaussian noise of at least the claimed size in every layer, drawn anew each time.",
    assumes="What is random beside the noise, such as dropout, counts as noise. Noise in floating point can be told "
    "from its last bits by who sees them (Mironov 2012); this is not judged.",
)
def check(audited: AuditedApp) -> Judged:
    """Whether every sum carries the noise that is claimed."""
    alarms = Alarms()
    drawn = _with_every_record(audited)
    groups = [("trainings", drawn), ("rounds", _of_rounds(audited)), ("steps of a round", _of_steps(audited))]
    if not all(np.isfinite(rows).all() for _, rows in groups):
        alarms.must(False, "Sums are no numbers, and no noise can be found in them.")
        return Judged(math.nan, alarms.reasons)
    if _is_silent(audited, drawn[0]):
        alarms.must(False, "Sums leave without noise, or next to none, whatever noise is asked for.")
        return Judged(0.0, alarms.reasons)
    for about, rows in groups:
        _test_repeated(alarms, rows, audited.unit, about)
    if alarms.reasons:  # noise that is always the same would be taken for none
        return Judged(0.0, alarms.reasons, alarms.p_value)
    _test_size(alarms, drawn / audited.unit, audited.sizes)
    if _deviation(drawn / audited.unit) > 1.0 - _NEAR:  # else it is too small whoever joins
        _test_sampled(alarms, audited)
    return Judged(_deviation(drawn / audited.unit), alarms.reasons, alarms.p_value)


def _with_every_record(audited: AuditedApp) -> Rows:
    """Noisy sums of the same records, of trainings that are seeded anew, [trainings, d]."""
    most = 24 if audited.effort is Effort.QUICK else 200
    count = min(max(math.ceil(_LEAST_DRAWS / audited.size), 12), most)
    return np.array([audited.sum(audited.shard, 100 + draw) for draw in range(count)])


def _is_silent(audited: AuditedApp, sum: Rows) -> bool:
    """Whether the first noisy sum is what it would be if no noise were asked for."""
    silent = audited.sum(audited.shard, 100, noise_multiplier=SILENT)
    return float(np.linalg.norm(sum - silent)) <= _SILENCE * audited.unit * math.sqrt(audited.size)


def _of_rounds(audited: AuditedApp) -> Rows:
    """The same of rounds of one app, which is seeded before the first."""
    rounds = audited.rounds(audited.shard, 1, _ROUNDS, **EVERY)
    return np.array([audited.sum_of(training, **EVERY) for training in rounds])


def _of_steps(audited: AuditedApp) -> Rows:
    """The same of the steps of one round in which the model stands still; none where it does not."""
    rate = audited.app.settings.learning_rate * _STILL
    asked: dict[str, Any] = {"sampling_rate": 1.0, "steps": _STEPS, "learning_rate": rate}
    silent = _steps(audited, **asked, noise_multiplier=SILENT)
    if len(silent) < 2 or np.linalg.norm(silent[-1] - silent[0]) > 0.05 * audited.unit:
        return np.zeros((0, audited.size))
    return _steps(audited, **asked)


def _steps(audited: AuditedApp, **asked: Any) -> Rows:
    if not audited.at_optimizer:
        return np.zeros((0, audited.size))
    training = audited.train(audited.shard, 2, **asked)
    return np.array([audited.sum_of(training, step, **asked) for step in range(len(training.steps))])


def _test_size(alarms: Alarms, rows: Rows, sizes: tuple[int, ...]) -> None:
    """Whether there is enough of it: altogether, in each layer, in each coordinate; in standard deviations."""
    free = len(rows) - 1
    squares = np.square(rows - rows.mean(axis=0)).sum(axis=0)
    bounds = np.cumsum(sizes)[:-1]
    for number, part in enumerate(np.split(squares, bounds), 1):
        size = math.sqrt(part.mean() / free)
        where = f"in parameter {number} of {len(sizes)}" if len(sizes) > 1 else "of a sum"
        least = len(part) * stats.chi2.cdf(part.min(), free)
        alarms.test(min(1.0, least), f"One number or more {where} is released with hardly any noise, or none.")
        alarms.test(
            stats.chi2.cdf(part.sum(), free * len(part)),
            f"The noise {where} is {size:.3g} times what is claimed: one record shows through it.",
        )
    size = math.sqrt(squares.mean() / free)
    alarms.test(
        stats.chi2.cdf(squares.sum(), free * squares.size),
        f"The noise is {size:.3g} times what is claimed: one record shows through it.",
    )
    if abs(size - 1.0) < _NEAR:
        draws = ((rows - rows.mean(axis=0)) * math.sqrt(len(rows) / free)).ravel()[:_MOST_SHAPED]
        shape = "The noise is as large as claimed and not Gaussian, which is what is accounted for."
        alarms.test(float(stats.kstest(draws, stats.norm.cdf).pvalue), shape)


def _test_repeated(alarms: Alarms, rows: Rows, unit: float, about: str) -> None:
    """Whether any two sums of the same records are too near to each other: their noise is the same."""
    if len(rows) < 2:
        return
    pairs = list(_pairs(len(rows)))
    differences = np.array([np.square(rows[one] - rows[other]).sum() for one, other in pairs])
    expected = 2.0 * unit**2 * rows.shape[1]
    if differences.min() > max(_ALIKE * float(np.median(differences)), _SAME * expected):
        return  # less noise than is claimed makes sums near to each other, and not the same
    nearest = stats.chi2.cdf(differences.min() / (2.0 * unit**2), rows.shape[1])
    alarms.test(
        min(1.0, len(pairs) * float(nearest)),
        f"Two {about} add the same noise: whoever subtracts one from the other sees the records without any.",
    )


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((one, other) for one in range(count) for other in range(one))


def _test_sampled(alarms: Alarms, audited: AuditedApp) -> None:
    """Whether noise is as large with samples, of equal records, whose sum says nothing beside how many joined."""
    shard = rows_of(audited.shard, torch.zeros(len(audited.shard), dtype=torch.int64))
    rows = np.array([audited.sum_of(audited.train(shard, 200 + draw, steps=1), steps=1) for draw in range(_SAMPLED)])
    one = audited.sum(shard, noise_multiplier=SILENT)
    direction = one / max(float(np.linalg.norm(one)), 1e-300)
    if audited.size < 2 or not (np.isfinite(rows).all() and audited.repeats):
        return
    squares = np.square((rows - np.outer(rows @ direction, direction)) / audited.unit).sum(axis=1)
    free = audited.size - 1
    least = len(rows) * stats.chi2.cdf(squares.min(), free)
    alarms.test(
        min(1.0, 2.0 * min(least, float(stats.chi2.cdf(squares.sum(), free * len(rows))))),
        f"The noise of a step depends on how many records joined it: it was down to "
        f"{math.sqrt(squares.min() / free):.3g} times what is claimed (as where sums are divided by the "
        "true size of a batch).",
    )


def _deviation(rows: Rows) -> float:
    return float(np.sqrt(np.square(rows - rows.mean(axis=0)).sum() / ((len(rows) - 1) * rows.shape[1])))
