"""Numbers at random, each a function of a key and of what it is for.

Nothing is consumed from a stream: to ask for a draw again, or for one more, changes no other. So a run that goes on
draws as if it had never been stopped, and two runs of one seed see the same drop-outs whatever else is different.

They choose clients, and hide nothing. Noise, and the choice of records, have `fedprivacy.training.keystream`.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Self


class Purpose(enum.StrEnum):
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

    def uniform(self, purpose: Purpose, client_id: str, round: int = 0) -> float:
        """A number above 0 and below 1, uniformly distributed; of a client for good, where no round is given."""
        label = f"{purpose}/{round}/{client_id}".encode()
        word = hashlib.blake2b(label, key=self.key, digest_size=8).digest()
        return ((int.from_bytes(word) >> 12) + 0.5) * 2.0**-52
