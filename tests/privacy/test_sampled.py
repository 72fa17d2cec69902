"""The sample of each step, read from a client's releases: record by record, with the rate on the receipt."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.privacy.asking import (
    FALSE_ALARM,
    SILENT,
    Canaries,
    Client,
    binomial_range,
    deviation_range,
    root_mean_square,
)

RECORDS = 300
STEPS = 4
MOMENTUM = 0.5
WEIGHTS = np.array([sum(MOMENTUM**k for k in range(STEPS - step)) for step in range(STEPS)])
"""Moves of the parameters by a sum of each step: 1.875, 1.75, 1.5 and 1, whose every sum is another number."""

CROWD = 20_000
ONE_BY_ONE = Canaries(torch.eye(RECORDS))
ALIKE = Canaries(torch.tensor([[1.0, 0.0]]).repeat(CROWD, 1))

SECRET_AND_SEEDED = pytest.mark.parametrize("seed", [None, 5], ids=["secret", "seeded"])


def joined(client, **changed):
    """The records that joined each step of a grant, shape [STEPS, RECORDS], and the receipt."""
    released, receipt = client.train(steps=STEPS, momentum=MOMENTUM, noise_multiplier=SILENT, **changed)
    who = np.array(list(itertools.product([False, True], repeat=STEPS)))
    distance = np.abs(released[:, None] - who @ WEIGHTS)
    assert distance.min(axis=1).max() < 0.03  # a record joins once or not at all, with its whole gradient
    return who[distance.argmin(axis=1)].T, receipt


def agreement(rate):
    """Bounds of the number of records that the samples of two steps agree on."""
    return binomial_range(RECORDS, rate**2 + (1 - rate) ** 2, FALSE_ALARM / 100)


@SECRET_AND_SEEDED
@pytest.mark.parametrize("rate", [0.2, pytest.param(0.8, marks=pytest.mark.exhaustive)])
def test_each_step_of_a_round_draws_a_sample_of_its_own(seed, rate):
    """Catches: one sample for all steps of a round. Amplification by sampling is claimed for each step."""
    samples, _ = joined(Client(ONE_BY_ONE, seed), sampling_rate=rate)
    low, high = agreement(rate)
    for one, other in itertools.combinations(samples, 2):
        assert low <= (one == other).sum() <= high


def test_records_join_independently_of_each_other():
    """Catches: samples of a fixed size, blocks of records that join together, a record that is preferred."""
    client, rounds = Client(ONE_BY_ONE), 25
    samples = np.concatenate([joined(client, sampling_rate=0.5, round=r)[0] for r in range(1, rounds + 1)])
    low, high = binomial_range(len(samples), 0.5, FALSE_ALARM / RECORDS)
    assert low <= samples.sum(axis=0).min() <= samples.sum(axis=0).max() <= high
    pairs = [(samples[:, :-lag] == samples[:, lag:]).sum() for lag in (1, 2, 3, 8, 64)]
    for lag, agreed in zip((1, 2, 3, 8, 64), pairs, strict=True):
        low, high = binomial_range(len(samples) * (RECORDS - lag), 0.5, FALSE_ALARM / len(pairs))
        assert low <= agreed <= high
    low, high = deviation_range(len(samples), math.sqrt(RECORDS / 4))  # 300 coins are nearly a Gaussian
    assert low <= root_mean_square(samples.sum(axis=1) - RECORDS / 2) <= high


@SECRET_AND_SEEDED
@pytest.mark.parametrize("rate", [0.1, 0.9, *(pytest.param(q, marks=pytest.mark.exhaustive) for q in (1e-3, 0.9999))])
def test_as_many_records_join_as_the_rate_on_the_receipt_says(seed, rate):
    """Catches: a client that samples at a larger rate than its receipt says; "q >= .9 means everybody".

    At a rate of .9999, 320,000 draws include everybody with probability 1e-14.
    """
    steps = 16
    released, receipt = Client(ALIKE, seed).train(sampling_rate=rate, steps=steps, noise_multiplier=SILENT)
    assert receipt.sampling_rate == rate
    low, high = binomial_range(CROWD * steps, receipt.sampling_rate)
    assert low <= round(released[0]) <= high
    assert high < CROWD * steps


def test_a_record_that_leaves_takes_nobody_s_place():
    """Catches: draws that go by a record's place in the sample or by the number of records."""
    (whole, _), (less, _) = (
        joined(Client(Canaries(torch.eye(RECORDS)[:records]), seed=5), sampling_rate=0.5)
        for records in (RECORDS, RECORDS - 1)
    )
    assert np.array_equal(whole[:, :-1], less[:, :-1])
    assert not less[:, -1].any()


def test_a_rate_of_one_takes_everybody_once():
    """Catches: a record that is left out or counted twice where nothing is drawn."""
    for records in (0, 1, 7):
        client = Client(Canaries(torch.eye(7)[:records]))
        released, _ = client.train(sampling_rate=1.0, noise_multiplier=SILENT, steps=3)
        assert np.allclose(released, [3.0] * records + [0.0] * (7 - records), atol=0.03)
