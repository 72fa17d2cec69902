"""The gates for any training code, ours and other people's: release, replay, noise and sampling.

**Release** compares everything that leaves a client, field by field, between neighbouring shards. With the noise
frozen, only noised numbers may differ. Names, order, types, shapes, sizes, settings, counts, metrics, errors, and
whether there is a reply at all, are the same whatever the records are. And where a record contributes nothing, nothing
differs.

**Replay** asks about two shards that differ in one record, with samples and noise frozen, and compares what left. The
released sums may differ by the one record's clipped gradient where it joined, and by nothing, not one bit, where it did
not.

**Noise** asks whether what is added to a sum is Gaussian, as large as claimed, everywhere, and never the same twice.

**Sampling** asks whether each record joins each step by a coin of its own, as often as the sampling rate says.
Amplification by sampling is accounted for independent Poisson samples; shuffled batches, batches of a fixed size or a
sample that is drawn once cost more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.gates import (
    MOST_REASONS,
    Alarms,
    Judged,
    gate,
    p_value_of_correlations,
    p_value_of_counts,
    p_value_of_echoes,
    p_value_of_variance,
    rms,
)
from fedprivacy.audit.subject import NOISED, Fields, ObservedNoise, Pairs, Samples, Subject

_FAR, _VERY_FAR = 3.5, 4.0
"""Standard deviations from which on a draw is in the tails: of few draws, and of many."""

_MANY = 1_000_000
"""Number of draws of which enough are very far."""

_MOST_SHAPED = 200_000
"""Number of draws whose distribution is tested."""

_NEAR = 0.05
"""Noise of at least the claimed size is no more than noise, and Gaussian, if its size is so near to the claimed one."""

_QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.98)
"""Quantiles at which counts are compared with the binomial distribution that they should have."""

Joined = NDArray[np.bool_]
"""Records that joined each step, shape [steps, records]."""


@gate(
    "release",
    proves="Nothing leaves the client that depends on a record, but for numbers that carry noise.",
    assumes="The neighbouring shards that were tried stand for all others. How long an answer takes is not judged.",
)
def release(subject: Subject) -> Judged:
    """Check whether nothing but noised numbers depends on a record."""
    alarms, told = Alarms(), dict[tuple[str, bool], str]()
    for pair in subject.neighbours(alarms):
        for name in differences(pair.one, pair.other, all_of_it=pair.alike):
            if (name, pair.alike) not in told and (reason := pair.in_words(name)):
                told[name, pair.alike] = reason
        if len(told) + len(set(alarms.reasons)) >= MOST_REASONS:
            break
    reasons = [*told.values(), *alarms.reasons]
    return Judged(float(len(reasons)), reasons)


def differences(one: Fields, other: Fields, *, all_of_it: bool) -> Iterator[str]:
    """The names of fields in which two replies differ, those that are noised only if `all_of_it`."""
    if [name for name, _ in one] != [name for name, _ in other]:
        yield "which fields there are, or their order"
        return
    for (name, mine), (_, theirs) in zip(one, other, strict=True):
        if mine != theirs and (all_of_it or not name.startswith(NOISED)):
            yield name.removeprefix(f"{NOISED} ")


@gate(
    "replay",
    proves="One record changes what leaves in a step by at most one clipping norm, and by nothing if it did not join.",
    assumes="The pairs of shards and the parameters that were tried stand for all others; the randomness was frozen.",
)
def replay(subject: Subject) -> Judged:
    """Check that one record changes a released sum by at most the clipping norm, and by nothing if it did not join."""
    alarms = Alarms()
    changes = [*subject.changes(alarms)]
    # A loss may always be told, since anybody who receives the update sees it.
    largest = max((change.size for change in changes if change.lost or not change.confidential), default=0.0)
    why = [] if all(change.holds for change in changes) else subject.why(changes)
    return Judged(largest, [*why, *alarms.reasons])


@gate(
    "noise",
    proves="Every release carries Gaussian noise of the claimed size in every coordinate, drawn anew each time.",
    assumes="Releases without records show the noise that releases with records carry.",
)
def noise(subject: Subject) -> Judged:
    """Check whether every release carries the noise that is claimed for it."""
    alarms, sizes = Alarms(), list[float]()
    for observed in subject.noise(alarms):
        judge_noise(alarms, observed)
        sizes.append(rms(observed.rows))
    return Judged(min(sizes, default=0.0), alarms.reasons, alarms.p_value)


def judge_noise(alarms: Alarms, noise: ObservedNoise) -> None:
    """Test noise of one model, by layer and altogether."""
    rows, of, least = noise.rows, noise.of, noise.at_least
    must = f"it must be 1{' at least' if least else ''}"
    parts = np.split(rows, np.cumsum([*noise.layers.values()])[:-1], axis=1) if noise.layers else []
    for layer, part in zip(noise.layers, parts, strict=True):
        size = rms(part)
        alarms.test(
            p_value_of_variance(part, at_least=least),
            f"The noise in {layer}{of} is {size:.3g} times what is claimed; {must}.",
        )
        quietest = part.shape[1] * stats.chi2.cdf(np.square(part).sum(axis=0).min(), len(part))
        alarms.test(
            min(1.0, quietest), f"One number or more in {layer}{of} is released with hardly any noise, or none."
        )
    size = rms(rows)
    alarms.test(
        p_value_of_variance(rows, at_least=least), f"The noise{of} is {size:.4g} times what is claimed; {must}."
    )
    if len(rows) > 1:
        _test_alike(alarms, noise)
    draws = rows.ravel()
    shape = f"The noise{of} is not Gaussian, which is what is accounted for."
    if not least or abs(size - 1.0) < _NEAR:
        alarms.test(float(stats.kstest(draws[:_MOST_SHAPED], stats.norm.cdf).pvalue), shape)
    if least and abs(size - 1.0) >= _NEAR:
        return
    rows = rows / size if least else rows
    alarms.test(p_value_of_echoes(rows), f"The noise{of} repeats itself within a release: a server could subtract it.")
    far = _FAR if draws.size < _MANY else _VERY_FAR
    alarms.test(p_value_of_counts(int((np.abs(rows) > far).sum()), draws.size, 2.0 * stats.norm.sf(far)), shape)
    if len(rows) > 1 and not least:
        p_value, pair = p_value_of_correlations(rows)
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


@gate(
    "sampling",
    proves="Each record joins each step with the stated sampling rate, independently of all other records and steps.",
    assumes="Records whose gradients the auditor knows are sampled as all others are.",
)
def sampling(subject: Subject) -> Judged:
    """Check whether the samples are Poisson samples of the stated rate."""
    alarms = Alarms()
    shares = [_judge_samples(alarms, samples) for samples in subject.samples(alarms)]
    return Judged(shares[0], alarms.reasons, alarms.p_value)


def _judge_samples(alarms: Alarms, samples: Samples) -> float:
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
        judge_counts(alarms, joined, samples.rate)
    for pairs in samples.pairs:
        _test_independent(alarms, pairs, max(samples.rate, share) if samples.at_most else samples.rate, samples.at_most)
    return share


def judge_counts(alarms: Alarms, joined: Joined, rate: float) -> None:
    """Test three counts that must be binomial: records in a step, steps of a record, and all that joined."""
    steps, records = joined.shape
    _test_rate(alarms, joined, rate)
    alarms.test(
        _p_value_of_binomials(joined.sum(axis=1), records, rate),
        f"The number of records that join a step is not spread as that of independent records at a sampling rate of "
        f"{rate:.3g} (such as batches of a fixed size).",
    )
    alarms.test(
        _p_value_of_binomials(joined.sum(axis=0), steps, rate),
        "Some records join more steps, or fewer, than chance allows (such as one sample for all rounds).",
    )


def _test_rate(alarms: Alarms, joined: Joined, rate: float, *, at_most: bool = False) -> None:
    """Test whether as many join as is claimed. Fewer may, where more is accounted for than was spent."""
    alarms.test(
        p_value_of_counts(int(joined.sum()), joined.size, rate, at_most=at_most),
        f"A record joins {100 * joined.mean():.3g} % of the steps; a sampling rate of {100 * rate:.3g} % is accounted "
        "for (as where it is computed from the records of the whole federation and not of the client's shard).",
    )


def _p_value_of_binomials(counts: NDArray[np.int_], trials: int, chance: float) -> float:
    """P-value of counts that should be independent and binomial: how many lie below each of some quantiles."""
    limits = np.unique(stats.binom.ppf(_QUANTILES, trials, chance))
    below = np.array([(counts <= limit).sum() for limit in limits])
    shares = p_value_of_counts(below, len(counts), stats.binom.cdf(limits, trials, chance))
    return min(1.0, 2.0 * min(shares, p_value_of_counts(counts, trials, chance)))


def _test_independent(alarms: Alarms, pairs: Pairs, rate: float, at_most: bool) -> None:
    """Test whether samples have no more in common, nor less, than chance allows.

    Each record is counted once for two samples, and each step once for two records: so counts are binomial.
    """
    common = sum(int(((one > 0) & (other > 0)).sum()) for one, other in pairs.found)
    trials = sum(one.size for one, _ in pairs.found)
    if trials:
        alarms.test(
            p_value_of_counts(common, trials, rate**2, at_most=at_most),
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
