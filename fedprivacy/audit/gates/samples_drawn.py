"""Sampling: whether each record joins each step by a coin of its own, as often as the sampling rate says.

Amplification by sampling is accounted for independent Poisson samples; shuffled batches, batches of a fixed size or a
sample that is drawn once cost more.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.gates.alarms import Alarms, of_counts
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.audit.subject import Pairs, Samples, Subject

_QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.98)
"""Quantiles at which counts are compared with the binomial distribution that they should have."""

Joined = NDArray[np.bool_]
"""Records that joined each step, shape [steps, records]."""


@gate(
    "sampling",
    proves="Each record joins each step with the stated sampling rate, independently of all other records and steps.",
    assumes="Records whose gradients the auditor knows are sampled as all others are.",
)
def check(subject: Subject) -> Judged:
    """Check whether the samples are Poisson samples of the stated rate."""
    alarms = Alarms()
    shares = [_judged(alarms, samples) for samples in subject.samples(alarms)]
    return Judged(shares[0], alarms.reasons, alarms.p_value)


def _judged(alarms: Alarms, samples: Samples) -> float:
    """Test samples of one rate; returns the share of records that joined."""
    every = np.concatenate(samples.rounds)
    if not len(every):
        alarms.must(False, "No step was taken in a round: nobody can see who joins.")
        return math.nan
    most, joined = int(every.max(initial=0)), every > 0
    share = float(joined.mean())
    alarms.must(
        most <= 1,
        f"A record was counted {most} times in one step, as where records are drawn with replacement; once is allowed.",
    )
    if samples.rate >= 1.0:
        alarms.must(
            samples.at_most or bool(joined.all()),
            f"At a sampling rate of 1 only {joined.sum(1).min()} of {joined.shape[1]} records joined a step.",
        )
        return share
    if samples.at_most:
        _test_rate(alarms, joined, samples.rate, at_most=True)
        _test_shuffled(alarms, samples)
        _test_fixed_size(alarms, joined, samples.rate)
    else:
        test_counts(alarms, joined, samples.rate)
    for pairs in samples.pairs:
        _test_independent(alarms, pairs, max(samples.rate, share) if samples.at_most else samples.rate, samples.at_most)
    return share


def test_counts(alarms: Alarms, joined: Joined, rate: float) -> None:
    """Test three counts that must be binomial: records in a step, steps of a record, and all that joined."""
    steps, records = joined.shape
    _test_rate(alarms, joined, rate)
    alarms.test(
        _of_binomials(joined.sum(axis=1), records, rate),
        f"The number of records that join a step is not spread as that of independent records at a sampling rate of "
        f"{rate:.3g} (such as batches of a fixed size).",
    )
    alarms.test(
        _of_binomials(joined.sum(axis=0), steps, rate),
        "Some records join more steps, or fewer, than chance allows (such as one sample for all rounds).",
    )


def _test_rate(alarms: Alarms, joined: Joined, rate: float, *, at_most: bool = False) -> None:
    """Test whether as many join as is claimed. Fewer may, where more is accounted for than was spent."""
    alarms.test(
        of_counts(int(joined.sum()), joined.size, rate, at_most=at_most),
        f"A record joins {100 * joined.mean():.3g} % of the steps; a sampling rate of {100 * rate:.3g} % is accounted "
        "for (as where it is computed from the records of the whole federation and not of the client's shard).",
    )


def _of_binomials(counts: NDArray[np.int_], trials: int, chance: float) -> float:
    """P-value of counts that should be independent and binomial: how many lie below each of some quantiles."""
    limits = np.unique(stats.binom.ppf(_QUANTILES, trials, chance))
    below = np.array([(counts <= limit).sum() for limit in limits])
    shares = of_counts(below, len(counts), stats.binom.cdf(limits, trials, chance))
    return min(1.0, 2.0 * min(shares, of_counts(counts, trials, chance)))


def _test_independent(alarms: Alarms, pairs: Pairs, rate: float, at_most: bool) -> None:
    """Test whether samples have no more in common, nor less, than chance allows.

    Each record is counted once for two samples, and each step once for two records: so counts are binomial.
    """
    common = sum(int(((one > 0) & (other > 0)).sum()) for one, other in pairs.found)
    trials = sum(one.size for one, _ in pairs.found)
    if trials:
        alarms.test(
            of_counts(common, trials, rate**2, at_most=at_most),
            f"{pairs.about} have {common} {pairs.common} in common, where chance would give {rate**2 * trials:.0f}, as "
            "where a sample is drawn with the same random numbers again.",
        )


def _test_shuffled(alarms: Alarms, samples: Samples) -> None:
    """Test whether no record ever joins twice in what would be an epoch."""
    windows = [
        joined[start : start + epoch]
        for joined in samples.rounds
        if (epoch := min(max(round(1.0 / samples.rate), 1), len(joined)))
        for start in range(0, len(joined) - epoch + 1, epoch)
    ]
    if any(int(window.sum(axis=0).max()) > 1 for window in windows):
        return
    alone = sum(window.shape[1] * float(stats.binom.logcdf(1, len(window), samples.rate)) for window in windows)
    alarms.test(
        math.exp(alone),
        "Batches are shuffled, every record once an epoch, and accounted for as if each record joined each step "
        f"independently (Poisson): that each joins for certain costs more{samples.if_shuffled()}.",
    )


def _test_fixed_size(alarms: Alarms, joined: Joined, rate: float) -> None:
    """Test whether batches differ in size as independent samples do."""
    sizes, records = joined.sum(axis=1), joined.shape[1]
    values, counts = np.unique(sizes, return_counts=True)
    most = int(counts.max())
    likeliest = float(stats.binom.pmf(np.arange(records + 1), records, rate).max())
    alarms.test(
        min(1.0, (records + 1) * float(stats.binom.sf(most - 1, len(sizes), likeliest))),
        f"Batches have a fixed size: {most} of {len(sizes)} have {int(values[counts.argmax()])} records. Independent "
        "samples, which are accounted for, differ in size.",
    )
