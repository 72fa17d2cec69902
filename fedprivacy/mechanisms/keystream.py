"""Random bits that are a function of a key and a position, and of nothing else.

A draw is named by whose it is, what it is for, the round, the local step and its index. Nothing is consumed from a
stream, so adding a record, skipping a client or repeating a round changes no other draw: the auditor can replay a
neighbouring shard, and sampling can never borrow randomness from the noise.

The bits are an AES-256 keystream in counter mode (NIST SP 800-38A) under a key derived by keyed BLAKE2b (RFC 7693)
for each (purpose, round, step). The first half of a counter is the stream, a client's own, and the second half counts
its blocks: so the draws of many clients under one key are found in one pass of the cipher. With a secret key the bits
are cryptographic; with a key made from a seed they are reproducible, and protect nobody who knows the seed.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]

WORDS_A_BLOCK = 2
"""Number of 64-bit words in a block of the cipher."""

_ZEROS = memoryview(bytes(2**17))


class Purpose(enum.StrEnum):
    """The purpose of a draw. Draws for different purposes are independent."""

    SAMPLING = "sampling"
    NOISE = "noise"
    ANSWERS = "answers"
    VIEWS = "views"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a draw in a run: the round and the local step in it, both counted from 1."""

    round: int
    step: int


@dataclass(frozen=True, slots=True)
class Keystream:
    """Counter-based random bits: one stream under a 32-byte key.

    Attributes:
        key: 32 bytes.
        stream: which of 2^64 under this key.
    """

    key: bytes = field(repr=False)
    stream: int = 0

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"key has {len(self.key)} bytes; give 32.")

    @classmethod
    def secret(cls) -> Keystream:
        """Make a keystream that nobody can repeat: its key comes from the operating system and is not stored."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int, dataset_id: str, earlier_runs: int = 0, attempt: int = 1) -> Keystream:
        """Make a reproducible keystream for a simulated client.

        Args:
            seed: seed of the simulation.
            dataset_id: the client's shard: two tasks on one ledger must not share their noise either.
            earlier_runs: runs on the same ledger before this one. Were the noise of two runs the same, their
                difference would be free of it, and the ledger's sum of two independent releases false.
        """
        label = f"{seed}/{earlier_runs}/{attempt}".encode()
        return cls(hashlib.blake2b(label, digest_size=32, person=b"fedprivacy seed").digest()).of(dataset_id)

    def of(self, dataset_id: str) -> Keystream:
        """Return the stream of a shard under this key; two of a million shards share one with probability 3e-8."""
        digest = hashlib.blake2b(dataset_id.encode(), digest_size=8, person=b"fedprivacy shard").digest()
        return Keystream(self.key, int.from_bytes(digest, "big"))

    def bits(self, purpose: Purpose, position: Position, count: int) -> Words:
        """Draw `count` 64-bit words; the i-th depends on (key, purpose, position, i) only."""
        return self.reader(purpose, position)(np.empty(count, dtype=np.uint64))

    def reader(self, purpose: Purpose, position: Position) -> Reader:
        """Return a reader of the words of `bits` in order, piece by piece, so that a long draw needs little memory."""
        return Reader(self.subkey(purpose, position), self.stream)

    def subkey(self, purpose: Purpose, position: Position) -> bytes:
        """Derive the key of all streams' draws for this purpose at this position."""
        label = f"{purpose}/{position.round}/{position.step}".encode()
        return hashlib.blake2b(label, key=self.key, digest_size=32).digest()


class Reader:
    """Reads the words of one draw of one stream: in order, or block by block."""

    def __init__(self, subkey: bytes, stream: int = 0, first: int = 0) -> None:
        """Read from a word on, counted from 0."""
        self._subkey, self._stream, self._first = subkey, stream, first

    def __call__(self, words: Words) -> Words:
        """Fill an array, of one dimension, with the next words and return it."""
        view = words.view(np.uint8).data
        for start in range(0, len(view), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)
        return words

    @cached_property
    def _encryptor(self) -> CipherContext:
        block, skipped = divmod(self._first, WORDS_A_BLOCK)
        counter = (self._stream << 64 | block).to_bytes(16, "big")
        encryptor = Cipher(algorithms.AES(self._subkey), modes.CTR(counter)).encryptor()
        encryptor.update(bytes(8 * skipped))
        return encryptor

    def starting_at(self, word: int) -> Reader:
        """Return another reader of the same draw that starts at that word: for several threads."""
        return Reader(self._subkey, self._stream, word)

    def blocks(self, numbers: Words) -> Words:
        """Return the blocks of these numbers, of any shape: two words each, in one additional dimension."""
        return _encrypt(self._subkey, np.uint64(self._stream), numbers)

    def by_place(self, places: NDArray[np.intp], count: int) -> Words:
        """Return `count` words of each place's own, shape [places, count]; no other place changes them."""
        blocks = -(-count // WORDS_A_BLOCK)
        numbers = (places[:, np.newaxis] * blocks + np.arange(blocks)).astype(np.uint64)
        return self.blocks(numbers).reshape(len(places), blocks * WORDS_A_BLOCK)[:, :count]


class Readers:
    """Reads the words of one draw of many streams under one key, in one pass."""

    def __init__(self, keystreams: Sequence[Keystream], purpose: Purpose, position: Position) -> None:
        """Read what each keystream's own reader would read.

        Raises:
            ValueError: they are of several keys.
        """
        first = keystreams[0]
        if any(keystream.key != first.key for keystream in keystreams):
            raise ValueError("the keystreams have several keys; give streams of one.")
        self._subkey = first.subkey(purpose, position)
        self._streams = np.array([keystream.stream for keystream in keystreams], dtype=np.uint64)

    def words(self, rows: slice, count: int) -> Words:
        """Return the first `count` words of each stream in these rows, shape [rows, count]."""
        numbers = np.arange(-(-count // WORDS_A_BLOCK), dtype=np.uint64)
        blocks = _encrypt(self._subkey, self._streams[rows, np.newaxis], numbers)
        return np.ascontiguousarray(blocks.reshape(len(blocks), -1)[:, :count])

    def blocks(self, rows: NDArray[np.intp], numbers: Words) -> Words:
        """Return blocks of the streams in these rows, shape [n]: of `numbers`, shape [n, ...], two words each."""
        return _encrypt(self._subkey, self._streams[rows].reshape(-1, *[1] * (numbers.ndim - 1)), numbers)


def _encrypt(subkey: bytes, streams: Words | np.uint64, numbers: Words) -> Words:
    """Encrypt the counters made of streams and numbers, which are broadcast together: [..., 2] words."""
    counters = np.empty((*np.broadcast_shapes(np.shape(streams), numbers.shape), WORDS_A_BLOCK), dtype=">u8")
    counters[..., 0], counters[..., 1] = streams, numbers
    encrypted = np.empty(counters.size + WORDS_A_BLOCK, dtype=np.uint64)  # the cipher wants room for one block more
    encryptor = Cipher(algorithms.AES(subkey), modes.ECB()).encryptor()  # of counters: what CTR does
    if counters.size:
        encryptor.update_into(counters.data.cast("B"), encrypted.view(np.uint8).data)
    return encrypted[: counters.size].reshape(counters.shape)
