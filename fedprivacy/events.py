"""Events: what a mechanism did, as data.

An event holds the parameters of a mechanism *as executed* and nothing else. The object that adds the noise states
its event (`fedprivacy.mechanisms`), accountants compose events (`fedprivacy.accounting`), the ledger stores them, and
grants and receipts carry them. There is no second place where the sampling rate or the noise multiplier is written.

>>> event = PoissonSampledGaussian(sampling_rate=0.1, noise_multiplier=1.2)
>>> history = {event: 400}  # 400 local steps
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass


class NeighbouringRelation(enum.StrEnum):
    """Which two shards the guarantee compares.

    `ADD_OR_REMOVE_ONE`: one shard has one record more than the other; the number of records is private.
    `ZERO_OUT`: one record is replaced by a null record that contributes nothing; the number of records is public.
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"


CLIPPING_NORMS = (1e-6, 1e6)
"""Smallest and largest clipping norm: beyond them float32 gradients could no longer be clipped exactly."""


@dataclass(frozen=True, slots=True, order=True)
class PoissonSampledGaussian:
    """One release of a Gaussian sum over a Poisson sample of the records.

    Every record joins independently with probability `sampling_rate` q; the joined records' vectors, each of Euclidean
    norm at most C, are summed; every coordinate receives Gaussian noise of standard deviation `noise_multiplier` * C.

    Formal guarantee (Mironov, Talwar, Zhang 2019; Zhu, Dong, Wang 2022): under both relations the release is dominated
    in each direction by the pair (N(0, s^2), (1 - q) N(0, s^2) + q N(1, s^2)) with s = `noise_multiplier`. Both
    relations therefore cost the same; they are kept apart because they promise different things.

    Attributes:
        sampling_rate: q, in (0, 1].
        noise_multiplier: sigma, standard deviation of the noise in units of the clipping norm, > 0 and finite.
        relation: the neighbouring relation that the guarantee is stated for.
    """

    sampling_rate: float
    noise_multiplier: float
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ValueError(f"sampling_rate is {self.sampling_rate}; choose a probability in (0, 1].")
        if not (self.noise_multiplier > 0.0 and math.isfinite(self.noise_multiplier)):
            raise ValueError(f"noise_multiplier is {self.noise_multiplier}; choose a positive, finite number.")

    def __str__(self) -> str:
        return f"sampling rate {self.sampling_rate!r}, noise multiplier {self.noise_multiplier!r} ({self.relation})"


Event = PoissonSampledGaussian
"""Every event that an accountant may meet. A union as soon as there are two."""

History = Mapping[Event, int]
"""How often each event was executed. Order does not matter to composition, so none is kept."""
