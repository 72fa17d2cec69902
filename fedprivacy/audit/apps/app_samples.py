"""Sampling: who joins each step, by what was fetched for it, against the independent samples that are accounted for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.accounting import pld
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.apps.watched_training import WatchedTraining
from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.subject import Effort
from fedprivacy.values.events import PoissonSampledGaussian

Joined = NDArray[np.int64]
"""How often each record was fetched for each step of a round, [steps, records]."""

_ROUNDS = 8
"""Of one app, and as many of new ones."""

_LEAST_STEPS = 60
"""That are looked at, as far as a few hundred rounds give them."""


@gate(
    "sampling",
    proves="Each record joins each step with the claimed sampling rate, independently.",
    assumes="Whoever is fetched for a step joins it, and nobody else does.",
)
def check(audited: AuditedApp) -> Judged:
    """Whether samples are those that are accounted for."""
    alarms = Alarms()
    steps = max(audited.app.settings.steps, 1)
    rounds = max(_ROUNDS, min(math.ceil(_LEAST_STEPS / (2 * steps)), 100)) * (
        1 if audited.effort is Effort.QUICK else 4
    )
    one = [_joined(t, audited) for t in audited.rounds(audited.shard, 300, rounds)]
    others = [_joined(audited.train(audited.shard, 301 + draw), audited) for draw in range(rounds)]
    seen = [joined for joined in (*one, *others) if len(joined)]
    if not seen:
        return Judged(math.nan, ["No step was taken in a round: nobody can see who joins."])
    rate = float(np.minimum(np.concatenate(seen), 1).mean())
    claimed = audited.app.settings.sampling_rate
    alarms.must(
        not any((joined > 1).any() for joined in seen),
        "A record was fetched several times for one step, as where records are drawn with replacement.",
    )
    _test_every(alarms, audited)
    if claimed < 1.0:
        _test_rate(alarms, seen, claimed)
        _test_shuffled(alarms, audited, seen, claimed)
        _test_sizes(alarms, seen, claimed)
        _test_rounds(alarms, [one, others], max(claimed, rate))
    return Judged(rate, alarms.reasons, alarms.p_value)


def _joined(training: WatchedTraining, audited: AuditedApp) -> Joined:
    counts = [np.bincount(step.joined, minlength=len(audited.shard)) for step in training.steps]
    return np.array(counts, dtype=np.int64).reshape(len(counts), len(audited.shard))


def _test_every(alarms: Alarms, audited: AuditedApp) -> None:
    training = audited.train(audited.shard, 1, sampling_rate=1.0, steps=1)
    joined = _joined(training, audited)[0] if training.steps else np.zeros(1, dtype=np.int64)
    alarms.must(
        bool((joined > 0).all()),
        f"Asked for a sampling rate of 1, only {int((joined > 0).sum())} of {len(joined)} records joined.",
    )


def _test_rate(alarms: Alarms, seen: list[Joined], rate: float) -> None:
    """Whether no more join than is claimed; if fewer do, more is accounted for than was spent."""
    every = np.minimum(np.concatenate(seen), 1)
    share = float(every.mean())
    alarms.test(
        float(stats.binom.sf(every.sum() - 1, every.size, rate)),
        f"A record joins {100 * share:.3g} % of the steps; a sampling rate of {100 * rate:.3g} % is accounted for "
        "(as where it is computed from the records of the whole federation and not of the client's shard).",
    )


def _test_shuffled(alarms: Alarms, audited: AuditedApp, seen: list[Joined], rate: float) -> None:
    """Whether no record ever joins twice in what would be an epoch."""
    windows = [
        joined[start : start + epoch]
        for joined in seen
        if (epoch := min(max(round(1.0 / rate), 1), len(joined)))
        for start in range(0, len(joined) - epoch + 1, epoch)
    ]
    if any(int(window.sum(axis=0).max()) > 1 for window in windows):
        return
    alone = sum(window.shape[1] * float(stats.binom.logcdf(1, len(window), rate)) for window in windows)
    alarms.test(
        math.exp(alone),
        "Batches are shuffled, every record once an epoch, and accounted for as if each record joined each step "
        f"independently (Poisson): that each joins for certain costs more{_without_amplification(audited)}.",
    )


def _without_amplification(audited: AuditedApp) -> str:
    """What is guaranteed of shuffled batches, in which a record joins one step of each epoch."""
    app, settings = audited.app, audited.app.settings
    epochs = math.ceil(settings.steps * settings.sampling_rate - 1e-9)
    one = PoissonSampledGaussian(1.0, settings.noise_multiplier, app.relation)
    least, claimed = (pld.epsilon(history, app.delta) for history in ({one: epochs}, {audited.event: settings.steps}))
    return f"; of one round, an epsilon of {least:.3g} is guaranteed, where independent samples cost {claimed:.3g}"


def _test_sizes(alarms: Alarms, seen: list[Joined], rate: float) -> None:
    """Whether batches differ in size as independent samples do."""
    sizes = np.concatenate([joined.sum(axis=1) for joined in seen])
    records = seen[0].shape[1]
    values, counts = np.unique(sizes, return_counts=True)
    most = int(counts.max())
    likeliest = float(stats.binom.pmf(np.arange(records + 1), records, rate).max())
    alarms.test(
        min(1.0, (records + 1) * float(stats.binom.sf(most - 1, len(sizes), likeliest))),
        f"Batches have a fixed size: {most} of {len(sizes)} have {int(values[counts.argmax()])} records. Independent "
        "samples, which are accounted for, differ in size.",
    )


def _test_rounds(alarms: Alarms, runs: list[list[Joined]], rate: float) -> None:
    """Whether the same records join the same step of other rounds, or one record joins far too often."""
    for about, joined in zip(("Two rounds", "Two trainings with other randomness"), runs, strict=True):
        pairs = [(a, b) for a, b in zip(joined[::2], joined[1::2], strict=False) if len(a) and a.shape == b.shape]
        common = int(sum(np.minimum(np.minimum(a, b), 1).sum() for a, b in pairs))
        size = sum(a.size for a, _ in pairs)
        alarms.test(
            float(stats.binom.sf(common - 1, size, rate**2)) if size else 1.0,
            f"{about} have {common} records in common, step by step, where chance gives {rate**2 * size:.0f}: the "
            "sample is drawn with the same random numbers again.",
        )
