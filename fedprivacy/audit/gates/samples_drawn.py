"""Sampling: whether each record joins each step by a coin of its own, as often as the sampling rate says.

Each record points in a direction of its own, and the noise is silent: what leaves shows who joined. Amplification by
sampling is accounted for independent Poisson samples; shuffled batches, batches of a fixed size or a sample that is
drawn once cost more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.gates.alarms import Alarms, of_counts
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.audit.our_client.known_gradients import like, shard_of, zeros_for
from fedprivacy.audit.real_client import AskedClient
from fedprivacy.audit.subject import Effort

_SILENT = 1e-6
"""A noise multiplier that leaves a release readable."""

_EXPECTED = 30.0
"""Records that should join a step, as far as so many records make them."""

_RECORDS = (128, 1024)
"""Fewest and most records."""

_SECRET = 4
"""Rounds in which a client with secret randomness is asked twice."""

_STEPS = 4
"""Of each round."""

_LATE = 8
"""Rounds whose last step is looked at, where a round has more."""

_QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.98)
"""Of binomial counts, at which they are compared with what they should be."""

_AGAIN: tuple[dict[str, Any], ...] = ({"round": 1, "attempt": 2}, {"round": 1, "earlier_runs": 1})
"""The first round, under two more names."""

_LAGS = (1, 2, 8)
"""How many places the records are apart that are compared."""

_LONG = 1e4
"""Norm of a record before it is clipped, in clipping norms."""

_APART = 0.05
"""By how much what records add may differ."""

Joined = NDArray[np.bool_]
"""Who joined: shape [steps, records]."""


@gate(
    "sampling",
    proves="Each record joins each step with the stated sampling rate, independently of all other records and steps.",
    assumes="Records whose gradients the auditor knows are sampled as all others are.",
)
def check(audited: Audited) -> Judged:
    """Whether the samples are Poisson samples of the stated rate."""
    alarms, rates = Alarms(), dict.fromkeys((audited.grant.sampling_rate, 0.5))
    shares = {rate: _judge(audited, alarms, rate) for rate in rates}
    return Judged(shares[audited.grant.sampling_rate], alarms.reasons, alarms.p_value)


def _judge(audited: Audited, alarms: Alarms, rate: float) -> float:
    """Test the samples of one rate; returns the share of records that joined."""
    fewest, most = _RECORDS
    records = min(max(math.ceil(_EXPECTED / rate), fewest), most)
    task = like(audited, [records])
    shard = shard_of(_LONG * audited.grant.clipping_norm * torch.eye(records))
    client, secret = audited.client_of(task, shard), AskedClient(task, shard, device=audited.device)
    steps = 1 if audited.grant.adaptive is not None else _STEPS
    grant = audited.asking(sampling_rate=rate, noise_multiplier=_SILENT, steps=steps)
    rounds = audited.positions(16 if audited.effort is Effort.QUICK else 100)
    samples = [
        _joined(alarms, audited.sums(client, replace(grant, **name), zeros_for(task)), audited.grant.clipping_norm)
        for name in [*_AGAIN, *rounds]
    ]
    single = [replace(grant, steps=1, **name) for name in audited.positions(_SECRET) for _ in range(2)]
    for asked in single:  # one step: for each number of steps it would draw anew
        samples.append(_joined(alarms, audited.sums(secret, asked, zeros_for(task)), audited.grant.clipping_norm))
    if rate < 1.0:
        test_counts(alarms, np.concatenate(samples), rate)
        if audited.grant.steps > steps and audited.grant.adaptive is None:
            late = replace(grant, steps=audited.grant.steps)
            last = [
                audited.last_sum(client, replace(late, **name), zeros_for(task)) for name in audited.positions(_LATE)
            ]
            test_counts(alarms, _joined(alarms, last, audited.grant.clipping_norm), rate)
        _test_pairs(alarms, samples, rate)
    else:
        everybody = all(bool(sample.all()) for sample in samples)
        alarms.must(everybody, "At a sampling rate of 1 a record was left out of a step.")
    return float(np.concatenate(samples).mean())


def _joined(alarms: Alarms, sums: list[NDArray[np.float64]], clipping_norm: float) -> Joined:
    """Who joined the steps whose sums these are: who adds nothing did not, and the others add the same, at most C."""
    joined = []
    for released in sums:
        times = released / clipping_norm
        some = times > 0.05 * times.max(initial=0.05)
        usual = float(np.median(times[some])) if some.any() else 1.0  # a sum that is shrunk after the noise is shorter
        counted = np.rint(times / usual)
        alike = bool((np.abs(times / usual - counted) < _APART).all()) and usual < 1.0 + _APART
        alarms.must(alike, "What a record adds to a step depends on who else joins it.")
        most = int(counted.max(initial=0.0))
        alarms.must(most <= 1, f"A record was counted {most} times in one step; once is allowed.")
        joined.append(counted >= 0.5)
    return np.array(joined)


def test_counts(alarms: Alarms, samples: Joined, rate: float) -> None:
    """How many records join a step, how many steps a record joins, and how many joined in all: binomial counts."""
    steps, records = samples.shape
    total = int(samples.sum())
    share = total / samples.size
    alarms.test(
        of_counts(total, samples.size, rate),
        f"Records join a step with a probability of {share:.3g}; the sampling rate is said to be {rate:.3g}.",
    )
    alarms.test(
        _of_binomials(samples.sum(axis=1), records, rate),
        f"The number of records that join a step is not spread as that of independent records at a sampling rate of "
        f"{rate:.3g} (such as batches of a fixed size).",
    )
    alarms.test(
        _of_binomials(samples.sum(axis=0), steps, rate),
        "Some records join more steps, or fewer, than chance allows (such as one sample for all rounds).",
    )


def _of_binomials(counts: NDArray[np.int_], trials: int, chance: float) -> float:
    """P-value of counts that should be independent and binomial: how many lie below each of some quantiles."""
    limits = np.unique(stats.binom.ppf(_QUANTILES, trials, chance))
    below = np.array([(counts <= limit).sum() for limit in limits])
    shares = of_counts(below, len(counts), stats.binom.cdf(limits, trials, chance))
    return min(1.0, 2.0 * min(shares, of_counts(counts, trials, chance)))


def _test_pairs(alarms: Alarms, samples: list[Joined], rate: float) -> None:
    """Whether two steps, rounds or neighbouring records have more or less in common than chance allows.

    Each record is counted once for two steps, and each step once for two records: so counts are binomial.
    """
    both = rate**2
    steps = [(one, other) for sample in samples for one, other in zip(sample[::2], sample[1::2], strict=False)]
    attempt, later, *rounds = samples[: -2 * _SECRET]
    secret = [sample[0] for sample in samples[-2 * _SECRET :]]
    first = rounds[0]
    across = list(zip([round[0] for round in rounds[::2]], [round[0] for round in rounds[1::2]], strict=False))
    pairs = {
        "Two steps of a round": steps,
        "Two rounds": across,
        "Two attempts at a round": list(zip(first, attempt, strict=True)),
        "Two runs": list(zip(first, later, strict=True)),
        "Two trainings of a client with secret randomness": list(zip(secret[::2], secret[1::2], strict=True)),
    }
    for about, found in pairs.items():
        if not found:
            continue
        common = int(sum(int((one & other).sum()) for one, other in found))
        alarms.test(
            of_counts(common, sum(one.size for one, _ in found), both),
            f"{about} have {common} records in common, where chance would give "
            f"{both * sum(one.size for one, _ in found):.0f}.",
        )
    every = np.concatenate(samples)
    for lag in _LAGS:
        blocks = every[:, : every.shape[1] // (2 * lag) * 2 * lag].reshape(len(every), -1, 2, lag)
        alarms.test(
            of_counts(int((blocks[:, :, 0] & blocks[:, :, 1]).sum()), blocks[:, :, 0].size, both),
            f"Records that are {lag} places apart join together more often, or less, than chance allows.",
        )
