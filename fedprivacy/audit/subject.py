"""A subject of an audit: training code that trains as it is asked and shows what left; and what gates see of it.

Our own client is one (`fedprivacy.audit.our_client`), other people's training code another (`fedprivacy.audit.apps`).
Each knows how to freeze its randomness, on which shards to ask, and how to read what left. A gate knows what must hold
of that, and is the same for both.
"""

from __future__ import annotations

import enum
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedprivacy.audit.gates import Alarms
from fedprivacy.tasks import Shard

Counts = NDArray[np.int_]
"""Times that each record joined each step, shape [steps, records]."""

Fields = list[tuple[str, object]]
"""All that left, in its order: the name of each thing, and what it is."""

NOISED = "noised"
"""The beginning of the names of those fields that may differ between neighbours."""


class Effort(enum.StrEnum):
    """Duration of an audit: seconds, or minutes for more positions, records and parameters."""

    QUICK = "quick"
    FULL = "full"


class Pairs(NamedTuple):
    """Samples that must be independent, two by two.

    Attributes:
        about: what they are, in words.
        found: the samples; of one pair, both have the same shape.
        common: whatever two samples have in common, in a word.
    """

    about: str
    found: Sequence[tuple[Counts, Counts]]
    common: str = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Records that joined the steps of some rounds.

    Attributes:
        rate: the claimed sampling rate.
        rounds: for each round, the counts of records that joined its steps.
        pairs: those that must be independent.
        at_most: whether fewer records may join than the rate says.
        if_shuffled: what is guaranteed if every record joins once an epoch, in words that go on after a sentence.
    """

    rate: float
    rounds: Sequence[Counts]
    pairs: Sequence[Pairs] = ()
    at_most: bool = False
    if_shuffled: Callable[[], str] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Outputs of trainings on two neighbouring shards, with the same randomness.

    Attributes:
        one, other: all that left.
        in_words: what is wrong if the field of a name differs; empty: nothing is, as it differs by itself.
        alike: whether noised numbers must not differ either, because the record contributes nothing.
    """

    one: Fields
    other: Fields
    in_words: Callable[[str], str]
    alike: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Distance between two releases whose shards differ in one record, with the same randomness.

    Attributes:
        about: words that say which record it is, and where.
        moved: norm of the difference; infinite: one of them is no number.
        allowed: the most that one record may move a release, rounding included, if it joined.
        clipping_norm: the unit in which a change is told.
        joined: whether the record joined; if not, nothing may differ.
        confidential: whether the records are a data owner's own, so that no number of them is told.
        alone: the record, if its shard had no other.
    """

    about: str
    moved: float
    allowed: float
    clipping_norm: float
    joined: bool = True
    confidential: bool = False
    alone: Shard | None = None

    @property
    def size(self) -> float:
        """The change in clipping norms."""
        return self.moved / self.clipping_norm

    @property
    def lost(self) -> bool:
        """Return whether what left was not a number."""
        return math.isinf(self.moved)

    @property
    def holds(self) -> bool:
        """Return whether it is no larger than it may be."""
        return self.moved <= (self.allowed if self.joined else 0.0) < math.inf

    @property
    def in_words(self) -> str:
        """The fault of a change that is too large, in a sentence."""
        if self.lost:
            return f"An update that is not a number left the client ({self.about})."
        if not self.joined:
            by = "" if self.confidential else f" by {norms_text(self.size)} clipping norms"
            return f"A record that did not join a step changed what left{by}; nothing may change ({self.about})."
        by = "too many" if self.confidential else norms_text(self.size)
        return f"One record changed what left by {by} clipping norms; at most 1 is allowed ({self.about})."


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Norm of a difference; infinite if one of them holds what is not a number."""
    return float(np.linalg.norm(one - other)) if np.isfinite(one).all() and np.isfinite(other).all() else math.inf


def norms_text(norms: float) -> str:
    """A number of clipping norms for people."""
    return f"{norms:.0f}" if norms >= 100 else f"{norms:.2g}" if norms >= 1.1 else f"{norms:.5g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNoise:
    """Releases that hold noise alone.

    Attributes:
        rows: the noise, in claimed standard deviations, shape [releases, d].
        of: the releases, in words that follow "the noise".
        layers: numbers in each layer, by a name in words; empty: the layers are not told apart.
        about: of each release, in words.
        at_least: whether there may be more noise than is claimed, of any kind.
    """

    rows: NDArray[np.float64]
    of: str
    layers: Mapping[str, int] = field(default_factory=dict)
    about: Sequence[str] = ()
    at_least: bool = False


class Subject(Protocol):
    """Training code under audit.

    Every method trains on shards that the auditor chose, under randomness that the auditor froze, and yields what that
    showed. Faults of the asking itself go to `alarms`."""

    def neighbours(self, alarms: Alarms) -> Iterator[Neighbours]:
        """Yield what leaves for shards that differ in one record."""

    def changes(self, alarms: Alarms) -> Iterator[Change]:
        """Yield the changes that one record makes to what leaves."""

    def why(self, changes: Sequence[Change]) -> Iterator[str]:
        """Explain what is wrong if some of the changes are too large."""

    def noise(self, alarms: Alarms) -> Iterator[ObservedNoise]:
        """Yield the noise that is added to sums; the smallest is the gate's statistic."""

    def samples(self, alarms: Alarms) -> Iterator[Samples]:
        """Yield the records that join each step; first at the claimed sampling rate."""


def audit_seed(seed: int | None) -> int:
    """Return the seed of an audit; for None, an unpredictable one, so that no code can be written to its requests."""
    return secrets.randbelow(2**31) if seed is None else seed
