"""Poisson sampling: every record joins a batch independently, with the same public probability."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedprivacy.keystream import Keystream, Position, Purpose


def poisson_sample(sampling_rate: float, records: int, keystream: Keystream, position: Position) -> NDArray[np.intp]:
    """Indices of the records that join the batch at `position`, ascending; any number from 0 to `records`.

    Formal guarantee: record i joins with probability floor(q 2^64) / 2^64 <= q, independently of every other record,
    and whether it joins depends on (key, round, step, i) only, not on how many records there are.

    Args:
        sampling_rate: q, in (0, 1].
        records: number of records in the shard.
        keystream: the client's randomness.
        position: round and local step.
    """
    if sampling_rate >= 1.0:
        return np.arange(records)
    threshold = np.uint64(math.floor(sampling_rate * 2.0**64))
    return np.flatnonzero(keystream.bits(Purpose.SAMPLING, position, records) < threshold)
