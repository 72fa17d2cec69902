"""Records join a batch at most at the rate that is accounted, and every order is as likely as any other."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position

KEY = Keystream.from_seed(1, "client-0")
HERE = Position(round=1, step=1)


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


@pytest.mark.parametrize("rate", [0.6, 1.0])
def test_a_record_s_place_tells_nothing_about_which_it_is(rate):
    """Catches: an order in which early records tend to come first, however large the batch."""
    records, count = 100, 400
    places = np.full((count, records), np.nan)
    for row, sample in zip(places, samples(rate, records, count), strict=True):
        row[sample] = (np.arange(len(sample)) + 0.5) / len(sample) - 0.5
    slopes = np.nansum(places * (np.arange(records) - (records - 1) / 2), axis=1)
    assert stats.ttest_1samp(slopes, 0.0).pvalue > 1e-5


@pytest.mark.parametrize(("rate", "bound"), [(0.5, 2**63), (0.25, 2**62), (2.0**-64, 1)])
def test_no_more_words_than_the_rate_s_share_let_a_record_join(rate, bound):
    """Catches: one word too many of 2^64, by which the rate would exceed the one that is accounted."""
    assert poisson_sample(rate, 4, Fixed(bound, bound - 1, 2**64 - 1, 0), HERE).tolist() in ([3, 1], [1, 3])
