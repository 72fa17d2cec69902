"""Poisson sampling: every record joins a batch independently, with the same public probability, in a random order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedprivacy.training.keystream import Keystream, Position, Purpose


def poisson_sample(sampling_rate: float, records: int, keystream: Keystream, position: Position) -> NDArray[np.intp]:
    """Indices of the records that join the batch at `position`, in random order; any number from 0 to `records`.

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
