"""Draws are a function of key and position, and nothing else."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose, Readers

KEY = Keystream.from_seed(1, "client-0")
HERE = Position(round=3, step=2)


@pytest.mark.parametrize("first", [0, 1, 7, 2**14 + 1])
def test_a_reader_starts_at_any_word_and_reads_piece_by_piece(first):
    arrays = [np.zeros(piece, dtype=np.uint64) for piece in (1, 2, 0, 3 * 2**14 + 5, 7)]
    read = KEY.reader(Purpose.SAMPLING, HERE)
    read(np.empty(3, dtype=np.uint64))
    starting = read.starting_at(first)
    assert all(starting(words) is words for words in arrays)
    count = first + sum(map(len, arrays))
    assert np.array_equal(np.concatenate(arrays), KEY.bits(Purpose.SAMPLING, HERE, count)[first:])


def test_words_are_an_aes_keystream_in_counter_mode():
    """Block i of stream s is the encrypted number 2^64 s + i, under a key for this draw alone (NIST SP 800-38A)."""
    subkey = hashlib.blake2b(b"sampling/3/2", key=KEY.key, digest_size=32).digest()
    numbers = b"".join((KEY.stream << 64 | i).to_bytes(16, "big") for i in range(4))
    blocks = Cipher(algorithms.AES(subkey), modes.ECB()).encryptor().update(numbers)
    assert KEY.bits(Purpose.SAMPLING, HERE, 8).tobytes() == blocks


@pytest.mark.parametrize(
    "other",
    [
        Keystream.from_seed(1, "client-1").bits(Purpose.SAMPLING, HERE, 8),
        Keystream.from_seed(2, "client-0").bits(Purpose.SAMPLING, HERE, 8),
        Keystream.from_seed(1, "client-0", earlier_runs=1).bits(Purpose.SAMPLING, HERE, 8),
        Keystream.from_seed(1, "client-0", attempt=2).bits(Purpose.SAMPLING, HERE, 8),
        KEY.bits(Purpose.NOISE, HERE, 8),
        KEY.bits(Purpose.SAMPLING, Position(3, 3), 8),
        KEY.bits(Purpose.SAMPLING, Position(2, 3), 8),
    ],
)
def test_client_seed_purpose_round_and_step_each_change_every_draw(other):
    assert not np.any(KEY.bits(Purpose.SAMPLING, HERE, 8) == other)


@pytest.mark.parametrize("count", [0, 1, 7, 8])
def test_many_streams_are_read_at_once_as_each_alone(count):
    keystreams = [KEY.of(f"client-{number}") for number in range(5)]
    words = Readers(keystreams, Purpose.NOISE, HERE).words(slice(1, 4), count)
    assert words.shape == (3, count)
    for row, keystream in zip(words, keystreams[1:4], strict=True):
        assert np.array_equal(row, keystream.bits(Purpose.NOISE, HERE, count))


def test_blocks_are_the_words_at_their_places():
    words, numbers = KEY.bits(Purpose.NOISE, HERE, 40), np.array([[3, 0], [19, 7]], dtype=np.uint64)
    expected = words.reshape(-1, 2)[numbers.astype(int)]
    assert np.array_equal(KEY.reader(Purpose.NOISE, HERE).blocks(numbers), expected)
    for count in (1, 2, 5):  # words of each place's own: no two places have one in common
        wide = KEY.bits(Purpose.NOISE, HERE, 50 * (count + 1)).reshape(-1, count + count % 2)
        found = KEY.reader(Purpose.NOISE, HERE).by_place(np.array([9, 0, 4]), count)
        assert np.array_equal(found, wide[[9, 0, 4], :count])
    readers = Readers([KEY.of("another"), KEY], Purpose.NOISE, HERE)
    assert np.array_equal(readers.blocks(np.array([1, 1]), numbers), expected)
    last = np.array([2**64 - 1], dtype=np.uint64)
    assert not np.array_equal(KEY.reader(Purpose.NOISE, HERE).blocks(last), readers.blocks(np.array([0]), last))


def test_seed_runs_and_attempt_are_not_run_together():
    numbers = [(seed, runs, attempt) for seed in (1, 11, 111) for runs in (0, 1, 11, 111) for attempt in (1, 11, 111)]
    assert len({Keystream.from_seed(seed, "client", runs, attempt).key for seed, runs, attempt in numbers}) == 36


def test_no_two_of_many_shards_share_a_stream_and_all_its_bits_tell_streams_apart():
    streams = {KEY.of(f"client-{number}").stream for number in range(100_000)}
    assert len(streams) == 100_000 and max(streams) > 2**63 and min(streams) < 2**50
    words = [
        Keystream(KEY.key, stream).bits(Purpose.NOISE, HERE, 4) for stream in (0, *(1 << bit for bit in range(64)))
    ]
    assert len(np.unique(words)) == 65 * 4
    keystreams = [Keystream(KEY.key, stream) for stream in (5, 5 + 2**32, 5 + 2**63)]
    assert len(np.unique(Readers(keystreams, Purpose.NOISE, HERE).words(slice(3), 4))) == 3 * 4


def test_secret_keystreams_differ_and_hide_their_key_and_no_key_is_short_or_mixed_with_another():
    one, two = Keystream.secret(), Keystream.secret()
    assert one != two
    assert one.key.hex() not in repr(one) and str(one.key) not in repr(one)
    with pytest.raises(ValueError, match="several keys"):
        Readers([one, two], Purpose.NOISE, HERE)
    with pytest.raises(ValueError, match="16 bytes; give 32"):
        Keystream(bytes(16))


def test_poisson_sampling_is_binomial_and_independent_between_records():
    sizes = np.array([len(poisson_sample(0.3, 200, KEY, Position(r, 1))) for r in range(1, 2001)])
    # Dispersion index of a binomial(200, .3): variance / mean = .7; chi-square with 1999 degrees of freedom.
    dispersion = ((sizes - 60.0) ** 2).sum() / (200 * 0.3 * 0.7)
    assert 5e-5 < stats.chi2.cdf(dispersion, 2000) < 1 - 5e-5
    joined = np.zeros((2000, 200))
    for r in range(2000):
        joined[r, poisson_sample(0.3, 200, KEY, Position(r + 1, 1))] = 1
    per_record = stats.chi2.cdf((((joined.sum(0) - 600) ** 2) / (2000 * 0.21)).sum(), 200)
    assert 5e-5 < per_record < 1 - 5e-5


def test_every_record_joins_at_rate_one_and_a_tiny_shard_can_be_empty():
    assert sorted(poisson_sample(1.0, 5, KEY, HERE)) == [0, 1, 2, 3, 4]
    assert len(poisson_sample(0.5, 0, KEY, HERE)) == 0
