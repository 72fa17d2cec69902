"""Random draws, each a function of a key and of its purpose.

Nothing is consumed from a stream: repeating a draw, or an additional one, changes no other. So a resumed run draws as
if it had never been stopped, and two runs of one seed see the same drop-outs whatever else differs.

They choose clients, and protect nothing. Noise, and the choice of records, use `fedprivacy.mechanisms.keystream`.
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
    """The purpose of a draw. Draws for different purposes are independent."""

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
        """Make the draws for a name: a seed, or a run without one."""
        return cls(hashlib.blake2b(name.encode(), digest_size=32, person=b"fedprivacy draws").digest())

    def uniform(self, purpose: DrawPurpose, client_id: str, round: int = 0) -> float:
        """Draw a number above 0 and below 1, uniformly; without a round, a client's is the same for the whole run."""
        word = int.from_bytes(_finish_hash(self._begin_hash(purpose, round), client_id))
        return ((word >> 12) + 0.5) * 2.0**-52

    def uniforms(self, purpose: DrawPurpose, client_ids: Iterable[str], round: int = 0) -> NDArray[np.float64]:
        """Draw the numbers of several clients, in their order, shape [clients]."""
        begun = self._begin_hash(purpose, round)
        words = np.frombuffer(b"".join(_finish_hash(begun, client_id) for client_id in client_ids), dtype=">u8")
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def _begin_hash(self, purpose: DrawPurpose, round: int) -> hashlib.blake2b:
        return hashlib.blake2b(f"{purpose}/{round}/".encode(), key=self.key, digest_size=8)


def _finish_hash(begun: hashlib.blake2b, client_id: str) -> bytes:
    """Finish a hash with one more text; starting anew for each of a million clients would take three times as long."""
    finished = begun.copy()
    finished.update(client_id.encode())
    return finished.digest()
