"""Random bits that are a function of a key and a position, and of nothing else.

A draw is named by what it is for, the round, the local step and its index. Nothing is consumed from a stream, so
adding a record, skipping a client or repeating a round changes no other draw: the auditor can replay a neighbouring
shard, and sampling can never borrow randomness from the noise.

The bits are an AES-256 keystream in counter mode (NIST SP 800-38A) under a key derived by keyed BLAKE2b (RFC 7693)
for each (purpose, round, step). With a secret key they are cryptographic; with a key made from a seed they are
reproducible, and protect nobody who knows the seed.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

_ZEROS = memoryview(bytes(2**17))


class Purpose(enum.StrEnum):
    """What a draw is for. Draws for different purposes are independent."""

    SAMPLING = "sampling"
    NOISE = "noise"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class Position:
    """Where in a run a draw happens: the round and the local step in it, both counted from 1."""

    round: int
    step: int


@dataclass(frozen=True, slots=True)
class Keystream:
    """Counter-based random bits under one 32-byte key."""

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"key has {len(self.key)} bytes; give 32.")

    @classmethod
    def secret(cls) -> Keystream:
        """A keystream that nobody can repeat: its key comes from the operating system and is kept nowhere."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int, dataset_id: str, earlier_runs: int = 0, attempt: int = 1) -> Keystream:
        """A reproducible keystream for a simulated client.

        Args:
            seed: of the simulation.
            dataset_id: the client's shard: two tasks on one ledger must not share their noise either.
            earlier_runs: runs on the same ledger before this one. Were the noise of two runs the same, their
                difference would be free of it, and the ledger's sum of two independent releases false.
        """
        label = f"{seed}/{earlier_runs}/{attempt}/{dataset_id}".encode()
        return cls(hashlib.blake2b(label, digest_size=32, person=b"fedprivacy seed").digest())

    def bits(self, purpose: Purpose, position: Position, count: int) -> NDArray[np.uint64]:
        """Draw `count` 64-bit words; the i-th depends on (key, purpose, position, i) only."""
        return self.reader(purpose, position)(np.empty(count, dtype=np.uint64))

    def reader(self, purpose: Purpose, position: Position) -> Reader:
        """Read the words of `bits` in order, piece by piece, so that a long draw needs little memory."""
        label = f"{purpose}/{position.round}/{position.step}".encode()
        return Reader(hashlib.blake2b(label, key=self.key, digest_size=32).digest())


class Reader:
    """Reads the words of one draw in order."""

    def __init__(self, subkey: bytes, first: int = 0) -> None:
        """Read from a word on, counted from 0."""
        self._subkey, self._first = subkey, first

    def __call__(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Fill an array with the next words and return it."""
        view = words.view(np.uint8).data
        for start in range(0, len(view), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)
        return words

    @cached_property
    def _encryptor(self) -> CipherContext:
        block, skipped = divmod(self._first, 2)  # of the cipher: two words each
        encryptor = Cipher(algorithms.AES(self._subkey), modes.CTR(block.to_bytes(16, "big"))).encryptor()
        encryptor.update(bytes(8 * skipped))
        return encryptor

    def starting_at(self, word: int) -> Reader:
        """Another reader of the same draw, from that word on: for several threads."""
        return Reader(self._subkey, word)
