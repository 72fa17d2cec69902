"""Numbers at random, each a function of a key and of what it is for.

Nothing is consumed from a stream: to ask for a draw again, or for one more, changes no other. So a run that goes on
draws as if it had never been stopped, and two runs of one seed see the same drop-outs whatever else is different.

They choose clients, and hide nothing. Noise, and the choice of records, have `fedprivacy.mechanisms.keystream`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


class DrawPurpose(enum.StrEnum):
    """What a draw is for. Draws for different purposes are independent."""

    COHORT = "cohort"
    DROP_OUT = "drop-out"
    TIE = "tie"
    SPEED = "speed"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Draws:
    """All draws of a run, under one key."""

    key: bytes

    @classmethod
    def of(cls, name: str) -> Self:
        """Those of whatever has this name: a seed, or a run without one."""
        return cls(hashlib.blake2b(name.encode(), digest_size=32, person=b"fedprivacy draws").digest())

    def uniform(self, purpose: DrawPurpose, client_id: str, round: int = 0) -> float:
        """A number above 0 and below 1, uniformly distributed; of a client for good, where no round is given."""
        word = int.from_bytes(_finished(self._begun(purpose, round), client_id))
        return ((word >> 12) + 0.5) * 2.0**-52

    def uniforms(self, purpose: DrawPurpose, client_ids: Iterable[str], round: int = 0) -> NDArray[np.float64]:
        """The numbers of several clients, in their order, shape [clients]."""
        begun = self._begun(purpose, round)
        words = np.frombuffer(b"".join(_finished(begun, client_id) for client_id in client_ids), dtype=">u8")
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def _begun(self, purpose: DrawPurpose, round: int) -> hashlib.blake2b:
        return hashlib.blake2b(f"{purpose}/{round}/".encode(), key=self.key, digest_size=8)


def _finished(begun: hashlib.blake2b, client_id: str) -> bytes:
    """The hash of one more text; to begin it anew for each of a million clients would take three times as long."""
    finished = begun.copy()
    finished.update(client_id.encode())
    return finished.digest()
