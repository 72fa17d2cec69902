"""The noise of an app: what differs between sums of the same records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.apps.audited_app import EVERY, SILENT, AuditedApp, rows_of
from fedprivacy.audit.gates.alarms import Alarms, rms
from fedprivacy.audit.subject import Effort, ObservedNoise

Rows = NDArray[np.float64]

_LEAST_DRAWS = 4000
"""Minimum number of draws of the noise, if the trainings give as many: enough to notice a tenth too little."""

_ROUNDS, _STEPS = 6, 4
"""Number of rounds of one app that is seeded once, and number of steps in one round."""

_STILL = 1e-6
"""Factor on the learning rate with which steps do not move the model."""

_SAMPLED = 16
"""Trainings with samples."""

_MOST_SHAPED = 50_000

_NEAR = 0.05
"""Relative distance from the claimed deviation within which noise counts as large enough to be looked at further."""

_SILENCE = 1e-3
"""A sum that its noise moves by less than this share of what is claimed has none."""

_ALIKE = 0.05
"""Two sums are suspected of the same noise whose squared difference is at most this share of the usual."""

_SAME = 1e-6
"""Or at most this share of the claimed noise: rounding."""


def noise(audited: AuditedApp, alarms: Alarms) -> Iterator[ObservedNoise]:
    """Noise of trainings with every record, whose sums are the same; and with samples."""
    drawn = _with_every_record(audited)
    groups = [("trainings", drawn), ("rounds", _of_rounds(audited)), ("steps of a round", _of_steps(audited))]
    if not all(np.isfinite(rows).all() for _, rows in groups):
        alarms.must(False, "Sums are no numbers, and no noise can be found in them.")
        return
    if _is_silent(audited, drawn[0]):
        alarms.must(False, "Sums leave without noise, or next to none, whatever noise is asked for.")
        return
    for about, rows in groups:
        _test_repeated(alarms, rows, audited.unit, about)
    if alarms.reasons:  # noise that is always the same would be taken for none
        return
    sizes = {f"parameter {n} of {len(audited.sizes)}": size for n, size in enumerate(audited.sizes, 1)}
    alone = _without_mean(drawn) / audited.unit
    yield ObservedNoise(rows=alone, of="", layers=sizes, about=_named("training", alone), at_least=True)
    if rms(alone) > 1.0 - _NEAR and audited.repeats and audited.size > 1:  # else it is too small whoever joins
        rows = _sampled(audited) / audited.unit
        if np.isfinite(rows).all():
            named = _named("step with a sample", rows)
            yield ObservedNoise(rows=rows, of=" of steps with samples", about=named, at_least=True)


def _named(word: str, rows: Rows) -> list[str]:
    return [f"{word} {number}" for number in range(1, len(rows) + 1)]


def _without_mean(rows: Rows) -> Rows:
    """Noise of releases with the same sum beneath, as so many less one that are independent, too (Helmert 1876)."""
    numbers = np.arange(1.0, len(rows))[:, None]
    return np.asarray((np.cumsum(rows, axis=0)[:-1] - numbers * rows[1:]) / np.sqrt(numbers * (numbers + 1.0)))


def _with_every_record(audited: AuditedApp) -> Rows:
    """Noisy sums of the same records, of trainings that are seeded anew, [trainings, d]."""
    most = 24 if audited.effort is Effort.QUICK else 200
    count = min(max(math.ceil(_LEAST_DRAWS / audited.size), 12), most)
    return np.array([audited.sum(audited.shard, 100 + draw) for draw in range(count)])


def _is_silent(audited: AuditedApp, sum: Rows) -> bool:
    """Return whether the first noisy sum is what it would be if no noise were asked for."""
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


def _test_repeated(alarms: Alarms, rows: Rows, unit: float, about: str) -> None:
    """Test whether any two sums of the same records are too near to each other: their noise is the same."""
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


def _sampled(audited: AuditedApp) -> Rows:
    """Sums of samples of equal records, without the direction in which their records point: what is left is noise.

    It is smaller where many join, for example, if sums are divided by the true size of a batch.
    """
    shard = rows_of(audited.shard, torch.zeros(len(audited.shard), dtype=torch.int64))
    rows = np.array([audited.sum_of(audited.train(shard, 200 + draw, steps=1), steps=1) for draw in range(_SAMPLED)])
    one = audited.sum(shard, noise_multiplier=SILENT)
    mirror = one / max(float(np.linalg.norm(one)), 1e-300)
    mirror[0] += math.copysign(1.0, mirror[0])
    mirror /= np.linalg.norm(mirror)
    return np.asarray((rows - 2.0 * np.outer(rows @ mirror, mirror))[:, 1:])
