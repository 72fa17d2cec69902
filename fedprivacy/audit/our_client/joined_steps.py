"""Records that join the steps of our client: each points in its own direction, and there is next to no noise.

So what leaves shows who joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.our_client.known_gradients import like, shard_of, zeros_for
from fedprivacy.audit.subject import Counts, Effort, Pairs, Samples

_SILENT = 1e-6
"""A noise multiplier that leaves a release readable."""

_EXPECTED = 30.0
"""Records that should join a step, as far as so many records make them."""

_RECORDS = (128, 1024)
"""Fewest and most records."""

_SECRET = 4
"""Rounds in which a client with secret randomness is asked twice."""

_STEPS = 4
"""Number of steps of each round."""

_LATE = 8
"""Rounds whose last step is looked at, where a round has more."""

_AGAIN: tuple[dict[str, Any], ...] = ({"round": 1, "attempt": 2}, {"round": 1, "earlier_runs": 1})
"""The first round, under two more names."""

_LAGS = (1, 2, 8)
"""Distances, in places, of the records that are compared."""

_LONG = 1e4
"""Norm of a record before it is clipped, in clipping norms."""

_APART = 0.05
"""Relative tolerance between what records add."""


def samples(audited: Audited, alarms: Alarms) -> Iterator[Samples]:
    """Samples at the run's own rate, and at one half."""
    for rate in dict.fromkeys((audited.grant.sampling_rate, 0.5)):
        yield from _of_rate(audited, alarms, rate)


def _of_rate(audited: Audited, alarms: Alarms, rate: float) -> Iterator[Samples]:
    """Samples of many rounds, and those of the last steps of some."""
    fewest, most = _RECORDS
    records, norm = min(max(math.ceil(_EXPECTED / rate), fewest), most), audited.grant.clipping_norm
    task = like(audited, [records])
    shard, zeros = shard_of(_LONG * norm * torch.eye(records)), zeros_for(task)
    client, secret = audited.client_of(task, shard), audited.client_of(task, shard, secret=True)
    steps = 1 if audited.grant.adaptive is not None else _STEPS
    grant = audited.asking(sampling_rate=rate, noise_multiplier=_SILENT, steps=steps)
    positions = audited.positions(16 if audited.effort is Effort.QUICK else 100)
    rounds = [
        _joined(alarms, audited.sums(client, replace(grant, **name), zeros), norm) for name in [*_AGAIN, *positions]
    ]
    twice = [replace(grant, steps=1, **name) for name in audited.positions(_SECRET) for _ in range(2)]
    # one step: for each number of steps it would draw anew
    in_secret = [_joined(alarms, audited.sums(secret, asked, zeros), norm) for asked in twice]
    yield Samples(rate=rate, rounds=[*rounds, *in_secret], pairs=[*_pairs(rounds, in_secret)])
    if rate < 1.0 and audited.grant.steps > steps and audited.grant.adaptive is None:
        late = replace(grant, steps=audited.grant.steps)
        last = [audited.last_sum(client, replace(late, **name), zeros) for name in audited.positions(_LATE)]
        yield Samples(rate=rate, rounds=[_joined(alarms, last, norm)])


def _joined(alarms: Alarms, sums: list[NDArray[np.float64]], clipping_norm: float) -> Counts:
    """Count how often records joined: one that adds nothing did not, and all others must add the same, at most C."""
    joined = []
    for released in sums:
        times = released / clipping_norm
        some = times > 0.05 * times.max(initial=0.05)
        usual = float(np.median(times[some])) if some.any() else 1.0  # a sum that is shrunk after the noise is shorter
        counted = np.rint(times / usual)
        alike = bool((np.abs(times / usual - counted) < _APART).all()) and usual < 1.0 + _APART
        alarms.must(alike, "What a record adds to a step depends on who else joins it.")
        joined.append(counted)
    counts: Counts = np.nan_to_num(np.array(joined)).astype(np.int_)
    return counts


def _pairs(rounds: list[Counts], in_secret: list[Counts]) -> Iterator[Pairs]:
    """Steps, rounds, attempts, runs, trainings with secret randomness, and neighbouring records."""
    of_round = [pair for sample in [*rounds, *in_secret] for pair in _by_twos(list(sample))]
    attempt, later, *others = rounds
    yield Pairs("Two steps of a round", of_round)
    yield Pairs("Two rounds", _by_twos([sample[0] for sample in others]))
    yield Pairs("Two attempts at a round", list(zip(others[0], attempt, strict=True)))
    yield Pairs("Two runs", list(zip(others[0], later, strict=True)))
    yield Pairs("Two trainings of a client with secret randomness", _by_twos(in_secret))
    every = np.concatenate([*rounds, *in_secret])
    for lag in _LAGS:
        blocks = every[:, : every.shape[1] // (2 * lag) * 2 * lag].reshape(len(every), -1, 2, lag)
        yield Pairs(f"Records that are {lag} places apart", [(blocks[:, :, 0], blocks[:, :, 1])], "steps")


def _by_twos(samples: list[Counts]) -> list[tuple[Counts, Counts]]:
    return list(zip(samples[::2], samples[1::2], strict=False))
