"""Draws are a function of key and position alone, and records join at the rate that is accounted, in any order."""

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose, Readers

KEY = Keystream.from_seed(1, "client-0")
HERE = Position(round=3, step=2)


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


class Fixed:
    """Draws these words."""

    def __init__(self, *words):
        self._words = np.array(words, dtype=np.uint64)

    def bits(self, purpose, position, count):
        return self._words[:count]


def samples(rate, records, count):
    return (poisson_sample(rate, records, KEY, Position(1, step)).tolist() for step in range(1, count + 1))


@pytest.mark.parametrize("rate", [0.6, 1.0])
def test_every_order_of_a_batch_is_equally_likely(rate):
    """Catches: the order of the shard. The mechanism's proof takes a record out of a batch in random order."""
    found = Counter(tuple(np.argsort(sample)) for sample in samples(rate, 4, 6000) if len(sample) == 3 + (rate == 1.0))
    orders = list(itertools.permutations(range(len(next(iter(found))))))
    assert stats.chisquare([found[order] for order in orders]).pvalue > 1e-5


@pytest.mark.parametrize(("rate", "bound"), [(0.5, 2**63), (0.25, 2**62), (2.0**-64, 1)])
def test_no_more_words_than_the_rate_s_share_let_a_record_join(rate, bound):
    """Catches: one word too many of 2^64, by which the rate would exceed the one that is accounted."""
    assert poisson_sample(rate, 4, Fixed(bound, bound - 1, 2**64 - 1, 0), HERE).tolist() in ([3, 1], [1, 3])
