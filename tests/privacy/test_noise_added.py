"""Noise and sample of a client, read from its releases: at each step, in each layer, for each way of clipping."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.training.adaptive import CLIPPINGS, QuantileClipping
from tests.privacy.asking import (
    FALSE_ALARM,
    SILENT,
    Canaries,
    Client,
    binomial_range,
    deviation_range,
    root_mean_square,
)

DIMENSION = 10_000


class TwoLayers(Canaries):
    """Without biases, records of zeros move none of the layers, whatever the noise has made of them."""

    def model(self):
        first, second = nn.Linear(self.records.shape[1], 1, bias=False), nn.Linear(1, 4_000, bias=False)
        for layer in (first, second):
            nn.init.zeros_(layer.weight)
        return nn.Sequential(first, second)


QUIET, EMPTY = TwoLayers(torch.zeros(3, DIMENSION)), TwoLayers(torch.zeros(0, DIMENSION))


def promised(receipt, clipping_norm=1.0):
    """The deviation of the noise in each coordinate of a release, from the steps and the event on the receipt."""
    each = receipt.noise_multiplier * clipping_norm * (1 + ROUNDING_ALLOWANCE)
    return math.sqrt(receipt.steps) * each


def check_deviation(noise, deviation):
    """The noise of both layers has this deviation, each by itself."""
    for layer in np.split(noise, [DIMENSION]):
        low, high = deviation_range(layer.size, deviation)
        assert low <= root_mean_square(layer) <= high


@pytest.mark.parametrize(("task", "seed"), [(QUIET, None), (EMPTY, 5)], ids=["three records, secret", "none, seeded"])
def test_each_step_adds_as_much_noise_as_the_receipt_says(task, seed):
    """Catches: half the noise with an honest receipt; noise in one step of a round only; one noise for all steps."""
    released, receipt = Client(task, seed).train(steps=9, noise_multiplier=1.3)
    assert (receipt.steps, receipt.noise_multiplier) == (9, 1.3)
    check_deviation(released, promised(receipt))


@pytest.mark.parametrize("clipping", [c for c in CLIPPINGS if c != "adaptive"])
def test_noise_is_in_proportion_to_the_clipping_norm_and_knows_no_sample(clipping):
    """Catches: noise that forgets C, or that is less where few or no records joined."""
    changed = {"clipping": clipping, "clipping_norm": 30.0, "sampling_rate": 0.01}
    released, receipt = Client(QUIET).train(noise_multiplier=0.7, **changed)
    check_deviation(released, promised(receipt, 30.0))


# Adaptive clipping

SHARE = QuantileClipping().share
RATE = QuantileClipping().learning_rate
QUANTILE = QuantileClipping().quantile


def test_the_noise_of_adaptive_clipping_follows_its_norm_from_step_to_step():
    """Catches: noise that keeps the norm with which the round began, while records are clipped to a larger one."""
    steps, records = 12, torch.zeros(200, 10_000)
    records[:, 0] = 1e5  # beyond every norm that is reached
    released, receipt = Client(Canaries(records)).train(
        steps=steps, clipping="adaptive", expected_batch_size=50.0, noise_multiplier=0.1
    )
    *norms, last = np.exp(RATE * QUANTILE * np.arange(steps + 1))
    assert math.isclose(receipt.clipping_norm, last, rel_tol=1e-6)
    each = receipt.noise_multiplier * np.array(norms) / math.sqrt(1 - SHARE) * (1 + ROUNDING_ALLOWANCE)
    low, high = deviation_range(10_000 - 1, math.sqrt(np.square(each).sum()))
    assert low <= root_mean_square(50.0 * released[1:]) <= high


@pytest.mark.exhaustive
def test_in_adaptive_clipping_one_noise_covers_the_sum_and_the_count_that_steers_the_norm():
    """Catches: a next norm from the true count, which is on the receipt; noise for the sum alone, half a percent less.

    The count, centred, is half a record for each that is within C, and its noise sigma / (2 sqrt(share)) records.
    """
    rounds, records, batch, sigma = 60, 40, 200.0, 2.0 * (1 + ROUNDING_ALLOWANCE)
    client, changed = Client(Canaries(torch.zeros(records, 20_000))), {"clipping": "adaptive", "noise_multiplier": 2.0}
    answers = [client.train(round=r, expected_batch_size=batch, **changed) for r in range(1, rounds + 1)]
    moves = np.log([receipt.clipping_norm for _, receipt in answers])
    low, high = deviation_range(rounds, sigma / (2 * math.sqrt(SHARE)))
    assert low <= root_mean_square(batch * (QUANTILE - 0.5 - moves / RATE) - records / 2) <= high
    noise = np.concatenate([batch * released for released, _ in answers])
    low, high = deviation_range(noise.size, sigma / math.sqrt(1 - SHARE))
    assert sigma < low <= root_mean_square(noise) <= high


# Who joined

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
    """The records that joined each step of a grant, shape [STEPS, RECORDS]."""
    released, _ = client.train(steps=STEPS, momentum=MOMENTUM, noise_multiplier=SILENT, **changed)
    who = np.array(list(itertools.product([False, True], repeat=STEPS)))
    distance = np.abs(released[:, None] - who @ WEIGHTS)
    assert distance.min(axis=1).max() < 0.03  # a record joins once or not at all, with its whole gradient
    return who[distance.argmin(axis=1)].T


@SECRET_AND_SEEDED
def test_each_step_of_a_round_draws_a_sample_of_its_own(seed):
    """Catches: one sample for all steps of a round. Amplification by sampling is claimed for each step."""
    samples = joined(Client(ONE_BY_ONE, seed), sampling_rate=0.2)
    low, high = binomial_range(RECORDS, 0.2**2 + 0.8**2, FALSE_ALARM / 100)
    for one, other in itertools.combinations(samples, 2):
        assert low <= (one == other).sum() <= high


@SECRET_AND_SEEDED
@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_as_many_records_join_as_the_rate_on_the_receipt_says(seed, rate):
    """Catches: a client that samples at a larger rate than its receipt says; "q >= .9 means everybody"."""
    steps = 16
    released, receipt = Client(ALIKE, seed).train(sampling_rate=rate, steps=steps, noise_multiplier=SILENT)
    assert receipt.sampling_rate == rate
    low, high = binomial_range(CROWD * steps, receipt.sampling_rate)
    assert low <= round(released[0]) <= high
    assert high < CROWD * steps
