"""Draws of an app: the noise, which differs between sums of the same records, and the records fetched for each step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import pdist

from fedprivacy.accounting import pld
from fedprivacy.audit.apps.audited_app import EVERY, SILENT, AuditedApp, rows_of
from fedprivacy.audit.apps.watched_training import WatchedTraining
from fedprivacy.audit.gates import Alarms, p_value_of_correlations, rms
from fedprivacy.audit.subject import Counts, Effort, ObservedNoise, Pairs, Samples
from fedprivacy.values.events import PoissonSampledGaussian

Rows = NDArray[np.float64]

_LEAST_DRAWS = 4000
"""Minimum number of draws of the noise, if the trainings give as many: enough to notice a tenth too little."""

_ROUNDS = 6
"""Number of rounds of one app that is seeded once."""

_FEWEST, _MOST_STEPS, _MOST_NUMBERS = 3, 240, 2**25
"""Fewest trainings, and the most steps and numbers in sums that all of them have: of long rounds there are fewer."""

_SAMPLED = 16
"""Steps with samples."""

_NEAR = 0.05
"""Relative distance from the claimed deviation within which noise counts as large enough to be looked at further."""

_SILENCE = 1e-3
"""A sum that its noise moves by less than this share of what is claimed has none."""

_ALIKE = 0.05
"""Two sums are suspected of the same noise whose squared difference is at most this share of the usual."""

_SAME = 1e-6
"""Or at most this share of the claimed noise: rounding."""

_SAMPLED_ROUNDS = 8
"""Number of rounds of one app, and of as many new ones."""

_LEAST_STEPS = 60
"""Number of steps that are looked at, as far as a few hundred rounds give them."""


def noise(audited: AuditedApp, alarms: Alarms) -> Iterator[ObservedNoise]:
    """Noise of trainings with every record, whose sums are the same; and with samples."""
    rounds = audited.rounds(audited.shard, 1, _ROUNDS, **EVERY)
    drawn, of_rounds = _with_every_record(audited), np.array([audited.sum_of(training, **EVERY) for training in rounds])
    if not (np.isfinite(drawn).all() and np.isfinite(of_rounds).all()):
        alarms.must(False, "Sums are no numbers, and no noise can be found in them.")
        return
    silent = audited.sum(audited.shard, 100, noise_multiplier=SILENT)
    if float(np.linalg.norm(drawn[0, 0] - silent)) <= _SILENCE * audited.unit * math.sqrt(audited.size):
        alarms.must(False, "Sums leave without noise, or next to none, whatever noise is asked for.")
        return
    _test_repeated(alarms, drawn[:, 0], audited.unit, "trainings")
    _test_repeated(alarms, of_rounds, audited.unit, "rounds")
    if alarms.reasons:  # noise that is always the same would be taken for none
        return
    sizes = {f"parameter {n} of {len(audited.sizes)}": size for n, size in enumerate(audited.sizes, 1)}
    alone = _without_mean(drawn) / audited.unit
    trainings, steps = alone.shape[:2]
    about = [f"step {step + 1} of training {training + 1}" for training in range(trainings) for step in range(steps)]
    for step in range(steps):
        named = about[step::steps]
        yield ObservedNoise(
            rows=alone[:, step],
            of=f" of step {step + 1}" if steps > 1 else "",
            layers=sizes,
            about=named,
            at_least=True,
        )
    if not alarms.reasons:  # steps without noise would be taken for ones with the same
        _test_repeated(alarms, _rows_of_steps(audited, drawn), audited.unit, "steps of a round")
        if alarms.reasons:
            return
    if audited.at_optimizer and steps > 1:  # else the model moves with one step's noise, and with it the next sum
        for layer, part in zip(sizes, np.split(alone, np.cumsum([*sizes.values()])[:-1], axis=2), strict=True):
            p_value, (one, other) = p_value_of_correlations(part.swapaxes(0, 1).reshape(steps, -1))
            told = f"The noise in {layer} of step {one + 1} tells of that of step {other + 1}"
            alarms.test(p_value, f"{told}: sums of both bear less noise.")
    every = alone.reshape(-1, audited.size)
    if steps > 1:
        yield ObservedNoise(rows=every, of="", layers=sizes, about=about, at_least=True)
    if rms(every) > 1.0 - _NEAR and audited.repeats and audited.size > 1:  # else it is too small whoever joins
        rows = _sampled_noise(audited) / audited.unit
        if np.isfinite(rows).all():
            about = [f"step {number} with a sample" for number in range(1, len(rows) + 1)]
            yield ObservedNoise(rows=rows, of=" of steps with samples", about=about, at_least=True)


def _without_mean(rows: Rows) -> Rows:
    """Noise of releases with the same sum beneath, as so many less one that are independent, too (Helmert 1876)."""
    numbers = np.arange(1.0, len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    return np.asarray((np.cumsum(rows, axis=0)[:-1] - numbers * rows[1:]) / np.sqrt(numbers * (numbers + 1.0)))


def _with_every_record(audited: AuditedApp) -> Rows:
    """Noisy sums of the same records, of trainings that are seeded anew, [trainings, steps, d]."""
    most, steps = 24 if audited.effort is Effort.QUICK else 200, audited.app.settings.steps
    trained = steps if audited.at_optimizer else steps * (steps + 1) // 2
    enough = min(max(math.ceil(_LEAST_DRAWS / audited.size), 12), most)
    allowed = min(most * _MOST_STEPS // 24 // trained, _MOST_NUMBERS // (steps * audited.size))
    count = max(min(enough, allowed), _FEWEST)
    sums = [audited.sums(audited.shard, 100 + draw) for draw in range(count)]
    return np.array([each[: min(map(len, sums))] for each in sums])


def _rows_of_steps(audited: AuditedApp, drawn: Rows) -> Rows:
    """The same of the steps of one round in which the model stands still; none where it does not."""
    silent = audited.sums(audited.shard, 2, noise_multiplier=SILENT) if audited.at_optimizer else []
    if len(silent) < 2 or np.linalg.norm(silent[-1] - silent[0]) > 0.05 * audited.unit:
        return np.zeros((0, audited.size))
    return np.asarray(drawn[0])


def _test_repeated(alarms: Alarms, rows: Rows, unit: float, about: str) -> None:
    """Test whether any two sums of the same records are too near to each other: their noise is the same."""
    if len(rows) < 2:
        return
    differences = pdist(rows, "sqeuclidean")
    expected = 2.0 * unit**2 * rows.shape[1]
    if differences.min() > max(_ALIKE * float(np.median(differences)), _SAME * expected):
        return  # less noise than is claimed makes sums near to each other, and not the same
    nearest = stats.chi2.cdf(differences.min() / (2.0 * unit**2), rows.shape[1])
    alarms.test(
        min(1.0, len(differences) * float(nearest)),
        f"Two {about} add the same noise: whoever subtracts one from the other sees the records without any.",
    )


def _sampled_noise(audited: AuditedApp) -> Rows:
    """Sums of samples of equal records, without the direction in which their records point: what is left is noise.

    It is smaller where many join, for example, if sums are divided by the true size of a batch.
    """
    shard = rows_of(audited.shard, torch.zeros(len(audited.shard), dtype=torch.int64))
    asked: dict[str, Any] = {"sampling_rate": audited.app.settings.sampling_rate}
    asked |= {} if audited.at_optimizer else {"steps": 1}  # else the model moves, and with it where they point
    trainings = max(_SAMPLED // audited.settings(**asked).steps, 2)
    rows = np.concatenate([audited.sums(shard, 200 + draw, **asked) for draw in range(trainings)])
    one = audited.sum(shard, noise_multiplier=SILENT)
    mirror = one / max(float(np.linalg.norm(one)), 1e-300)
    mirror[0] += math.copysign(1.0, mirror[0])
    mirror /= np.linalg.norm(mirror)
    return np.asarray((rows - 2.0 * np.outer(rows @ mirror, mirror))[:, 1:])


def samples(audited: AuditedApp, alarms: Alarms) -> Iterator[Samples]:
    """Samples at the claimed rate; and one at a rate of 1, in which everybody must be."""
    steps = max(audited.app.settings.steps, 1)
    rounds = max(_SAMPLED_ROUNDS, min(math.ceil(_LEAST_STEPS / (2 * steps)), 100)) * (
        1 if audited.effort is Effort.QUICK else 4
    )
    one = [_joined_counts(t, audited) for t in audited.rounds(audited.shard, 300, rounds)]
    others = [_joined_counts(audited.train(audited.shard, 301 + draw), audited) for draw in range(rounds)]
    yield Samples(
        rate=audited.app.settings.sampling_rate,
        rounds=[*one, *others],
        pairs=[Pairs("Two rounds", _apart(one)), Pairs("Two trainings with other randomness", _apart(others))],
        at_most=True,
        if_shuffled=lambda: _without_amplification(audited),
    )
    yield Samples(rate=1.0, rounds=[_joined_counts(audited.train(audited.shard, 1, **EVERY), audited)[:1]])


def _joined_counts(training: WatchedTraining, audited: AuditedApp) -> Counts:
    counts = [np.bincount(step.joined, minlength=len(audited.shard)) for step in training.steps]
    return np.array(counts, dtype=np.int64).reshape(len(counts), len(audited.shard))


def _apart(rounds: list[Counts]) -> list[tuple[Counts, Counts]]:
    """Rounds two by two, whose steps are as many."""
    return [(one, other) for one, other in zip(rounds[::2], rounds[1::2], strict=False) if one.shape == other.shape]


def _without_amplification(audited: AuditedApp) -> str:
    """State the guarantee of shuffled batches, in which a record joins one step of each epoch."""
    app, settings = audited.app, audited.app.settings
    epochs = math.ceil(settings.steps * settings.sampling_rate - 1e-9)
    one = PoissonSampledGaussian(1.0, settings.noise_multiplier, app.relation)
    least, claimed = (pld.epsilon(history, app.delta) for history in ({one: epochs}, {audited.event: settings.steps}))
    return f"; of one round, an epsilon of {least:.3g} is guaranteed, where independent samples cost {claimed:.3g}"
