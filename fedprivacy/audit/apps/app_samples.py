"""Records that join the steps of an app, by what was fetched for each step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedprivacy.accounting import pld
from fedprivacy.audit.apps.audited_app import EVERY, AuditedApp
from fedprivacy.audit.apps.watched_training import WatchedTraining
from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.subject import Counts, Effort, Pairs, Samples
from fedprivacy.values.events import PoissonSampledGaussian

_ROUNDS = 8
"""Number of rounds of one app, and of as many new ones."""

_LEAST_STEPS = 60
"""Number of steps that are looked at, as far as a few hundred rounds give them."""


def samples(audited: AuditedApp, alarms: Alarms) -> Iterator[Samples]:
    """Samples at the claimed rate; and one at a rate of 1, in which everybody must be."""
    steps = max(audited.app.settings.steps, 1)
    rounds = max(_ROUNDS, min(math.ceil(_LEAST_STEPS / (2 * steps)), 100)) * (
        1 if audited.effort is Effort.QUICK else 4
    )
    one = [_joined(t, audited) for t in audited.rounds(audited.shard, 300, rounds)]
    others = [_joined(audited.train(audited.shard, 301 + draw), audited) for draw in range(rounds)]
    yield Samples(
        rate=audited.app.settings.sampling_rate,
        rounds=[*one, *others],
        pairs=[Pairs("Two rounds", _apart(one)), Pairs("Two trainings with other randomness", _apart(others))],
        at_most=True,
        if_shuffled=lambda: _without_amplification(audited),
    )
    yield Samples(rate=1.0, rounds=[_joined(audited.train(audited.shard, 1, **EVERY), audited)[:1]])


def _joined(training: WatchedTraining, audited: AuditedApp) -> Counts:
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
