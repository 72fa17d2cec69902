"""Mechanisms: each adds its noise and states its event, in one place.

The sampling rate and the noise multiplier live in the event that the mechanism is built from. The mechanism samples
and adds noise with exactly those numbers, so what is accounted is what was executed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy._support.settings import range_words
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose, Readers
from fedprivacy.mechanisms.lattice_noise import (
    LATTICE_ALLOWANCE,
    add_lattice_noise,
    add_lattice_noise_by_row,
    lattice_step,
)
from fedprivacy.values.events import CLIPPING_NORMS, PoissonSampledGaussian

SUM_ALLOWANCE = 2.0**-10 + 2.0**-12 + 2.0**-13
"""Largest additional distance between the clipped sums of neighbouring shards by rounding, in clipping norms."""

ROUNDING_ALLOWANCE = SUM_ALLOWANCE + LATTICE_ALLOWANCE
"""Largest relative excess of the sensitivity over the clipping norm; the noise is scaled up to cover it."""

_MANY_RECORDS = 2**12
"""Number of records above which a client is sampled by itself: among small shards it would widen their whole table."""

_MANY_PARAMETERS = 2**14
"""Number of parameters above which each client's noise is added by itself: on a GPU, where that has the sums."""

ClippedSum = Callable[[NDArray[np.intp], float], torch.Tensor]
"""(indices of the sampled records, in random order, C) -> sum of their vectors, each of norm at most C, shape [d]."""


def poisson_sample(sampling_rate: float, records: int, keystream: Keystream, position: Position) -> NDArray[np.intp]:
    """Draw the records that join the batch at `position`: indices in random order, from 0 to `records` of them.

    Formal guarantee: every record draws a word of 64 bits, which depends on (key, round, step, index) only, not on how
    many records there are. It joins if its word is below floor(q 2^64), so with a probability of at most q,
    independently of every other record. The batch is in the order of the words: given who joined, every order is
    equally likely, but for a chance of n^2 / (q 2^65) that two of n words are equal.

    Args:
        sampling_rate: q, in (0, 1].
        records: number of records in the shard.
        keystream: the client's randomness.
        position: round and local step.
    """
    words = keystream.bits(Purpose.SAMPLING, position, records)
    if sampling_rate >= 1.0:
        return np.argsort(words, kind="stable")
    joined = np.flatnonzero(words < np.uint64(math.floor(sampling_rate * 2.0**64)))
    return joined[np.argsort(words[joined], kind="stable")]


def poisson_samples(
    sampling_rates: NDArray[np.float64], records: Sequence[int], keystreams: Sequence[Keystream], position: Position
) -> list[NDArray[np.intp]]:
    """Draw for several clients what `poisson_sample` draws for each; their keystreams share one key.

    Args:
        sampling_rates: q of each client, shape [clients].
        records: number of records of each client.
        keystreams: each client's randomness.
        position: round and local step.
    """
    samples: dict[int, NDArray[np.intp]] = {}
    few = []
    for place, count in enumerate(records):
        if count > _MANY_RECORDS:
            samples[place] = poisson_sample(float(sampling_rates[place]), count, keystreams[place], position)
        else:
            few.append(place)
    if few:
        of_few = [records[place] for place in few], [keystreams[place] for place in few]
        samples |= zip(few, _samples_at_once(sampling_rates[few], *of_few, position), strict=True)
    return [samples[place] for place in range(len(records))]


def _samples_at_once(
    sampling_rates: NDArray[np.float64], records: Sequence[int], keystreams: Sequence[Keystream], position: Position
) -> list[NDArray[np.intp]]:
    """Draw the samples of clients that have few records, in one table as wide as the largest shard."""
    sizes = np.array(records)[:, np.newaxis]
    words = Readers(keystreams, Purpose.SAMPLING, position).words(slice(None), int(sizes.max(initial=0)))
    below = np.array([math.floor(min(q, 1.0) * 2.0**64) for q in sampling_rates.tolist()], dtype=object)
    everybody = (below >= 2**64)[:, np.newaxis]
    limits = np.where(below < 2**64, below, 0).astype(np.uint64)[:, np.newaxis]
    joined = (np.arange(words.shape[1]) < sizes) & (everybody | (words < limits))
    words[~joined] = np.iinfo(np.uint64).max  # the last of their row: behind equal words, for they stand behind them
    order = np.argsort(words, axis=1, kind="stable")
    return [row[:count] for row, count in zip(order, joined.sum(1).tolist(), strict=True)]


def release_by_row(
    mechanisms: Sequence[SampledGaussianSum], totals: torch.Tensor, keystreams: Sequence[Keystream], position: Position
) -> torch.Tensor:
    """Add to each client's clipped sum what `SampledGaussianSum.release` adds to it, bit for bit.

    Args:
        mechanisms: mechanism of each client.
        totals: the sums over samples of `poisson_samples`, shape [clients, d].
        keystreams: each client's randomness, under one key.
        position: round and local step; never the same twice under one secret key.

    Returns:
        The noisy sums, shape [clients, d], float32: whole steps of each one's public lattice.
    """
    scales = np.array([mechanism.noise_scale for mechanism in mechanisms])
    steps = np.array([lattice_step(mechanism.clipping_norm, totals.shape[1]) for mechanism in mechanisms])
    if totals.shape[1] > _MANY_PARAMETERS:
        reads = [keystream.reader(Purpose.NOISE, position) for keystream in keystreams]
        rows = zip(totals, scales.tolist(), steps.tolist(), reads, strict=True)
        return torch.stack([add_lattice_noise(*row, torch.float32) for row in rows])
    return add_lattice_noise_by_row(totals, scales, steps, Readers(keystreams, Purpose.NOISE, position))


@dataclass(frozen=True, slots=True)
class SampledGaussianSum:
    """The noisy sum of clipped vectors over a Poisson sample of the records.

    Formal guarantee: one release is dominated by `event` if the callable given to `release` keeps this promise: for
    every list of indices, if the one at any place is taken out and the last one put into its place, or if its vector
    becomes zero, the sum changes by a vector of norm at most C (1 + `SUM_ALLOWANCE`).

    Proof. The list is the sample in uniformly random order. Take a record out of the shard. Where it was sampled, put
    the last of the list into its place: that is a uniformly random order of the others. So the releases of the two
    shards are mixtures, with the same weights, of Gaussians around pairs of sums that differ by at most
    C (1 + `SUM_ALLOWANCE`), and on the lattice by C `LATTICE_ALLOWANCE` more; the noise is scaled to that. A mixture of
    pairs costs no more than the costliest pair (the hockey-stick divergence is jointly convex).

    The order is random because computing a sum of n vectors rounds each block of the sum. In a fixed order one record
    less would shift all later ones, and so the rounding of n / 128 blocks; here only two blocks change
    (`fedprivacy.gradients.pieces.Sums`).

    Attributes:
        event: sampling rate, noise multiplier and relation; it determines the cost of one release.
        clipping_norm: C, the largest Euclidean norm of one record's vector, within `CLIPPING_NORMS`.
    """

    event: PoissonSampledGaussian
    clipping_norm: float

    def __post_init__(self) -> None:
        low, high = CLIPPING_NORMS
        if not low <= self.clipping_norm <= high:
            words = range_words(low, high, self.clipping_norm)
            raise ValueError(f"clipping_norm is {self.clipping_norm}; choose a number {words}.")

    def release(self, clipped_sum: ClippedSum, records: int, keystream: Keystream, position: Position) -> torch.Tensor:
        """Sample, sum, add noise once. An empty sample is released like any other.

        Args:
            clipped_sum: sums the sampled records' clipped vectors, in the order in which it is given their indices.
            records: number of records in the shard.
            keystream: the client's randomness.
            position: round and local step; never the same twice under one secret key.

        Returns:
            The noisy sum, shape [d], float32, on the device of the clipped sum: whole steps of the public lattice.
        """
        sample = poisson_sample(self.event.sampling_rate, records, keystream, position)
        total = clipped_sum(sample, self.clipping_norm)
        step, read = lattice_step(self.clipping_norm, total.numel()), keystream.reader(Purpose.NOISE, position)
        return add_lattice_noise(total, self.noise_scale, step, read, torch.float32)

    @property
    def sampling_rate(self) -> float:
        """Probability with which each record joins."""
        return self.event.sampling_rate

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise in each coordinate."""
        return self.event.noise_multiplier * self.clipping_norm * (1.0 + ROUNDING_ALLOWANCE)
