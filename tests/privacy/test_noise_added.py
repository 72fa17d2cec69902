"""The noise that a client added, read from its releases: at each step, in each layer, for each way of clipping."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.training.adaptive import CLIPPINGS, QuantileClipping
from tests.privacy.asking import Canaries, Client, deviation_range, root_mean_square

DIMENSION = 10_000
RARE = pytest.mark.exhaustive


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


@pytest.mark.parametrize("steps", [9, pytest.param(1, marks=RARE)])
@pytest.mark.parametrize(("task", "seed"), [(QUIET, None), (EMPTY, 5)], ids=["three records, secret", "none, seeded"])
def test_each_step_adds_as_much_noise_as_the_receipt_says(task, steps, seed):
    """Catches: half the noise with an honest receipt; noise in one step of a round only; one noise for all steps."""
    released, receipt = Client(task, seed).train(steps=steps, noise_multiplier=1.3)
    assert (receipt.steps, receipt.noise_multiplier) == (steps, 1.3)
    check_deviation(released, promised(receipt))


@pytest.mark.parametrize("clipping", [c for c in CLIPPINGS if c != "adaptive"])
@pytest.mark.parametrize(("clipping_norm", "rate"), [(30.0, 0.01), pytest.param(0.01, 1.0, marks=RARE)])
def test_noise_is_in_proportion_to_the_clipping_norm_and_knows_no_sample(clipping, clipping_norm, rate):
    """Catches: noise that forgets C, or that is less where few or no records joined."""
    changed = {"clipping": clipping, "clipping_norm": clipping_norm, "sampling_rate": rate}
    released, receipt = Client(QUIET).train(noise_multiplier=0.7, **changed)
    assert receipt.sampling_rate == rate
    check_deviation(released, promised(receipt, clipping_norm))


def test_each_round_attempt_and_run_of_a_client_draws_noise_of_its_own():
    """Catches: noise that a server could subtract, because it was asked for under two names.

    And, where randomness is secret, under one.
    """
    secret = Client(QUIET)
    (here, receipt), (there, _) = secret.train(), secret.train()
    check_deviation(here - there, math.sqrt(2) * promised(receipt))
    client = Client(QUIET, seed=5)
    here, receipt = client.train()
    for others in ({"round": 2}, {"attempt": 2}, {"earlier_runs": 1}):
        there, _ = client.train(**others)
        check_deviation(here - there, math.sqrt(2) * promised(receipt))
        check_deviation(here + there, math.sqrt(2) * promised(receipt))


class Counted:
    """Reads what another reader reads, and lets no word be read twice.

    Of the words that are read by blocks, half read as all ones. Rejection then refuses most of what it tries, and must
    draw again many times, as it hardly ever does otherwise.
    """

    def __init__(self, reader, taken, first=0):
        self._reader, self._taken, self._next = reader, taken, first

    def __call__(self, words):
        self._take(np.arange(self._next, self._next + words.size))
        self._next += words.size
        return self._reader(words)

    def blocks(self, numbers):
        self._take((2 * numbers.astype(object)[..., np.newaxis] + np.arange(2)).reshape(-1))
        words = self._reader.blocks(numbers)
        words[np.random.default_rng(len(self._taken)).random(words.shape) < 0.5] = 2**64 - 1
        return words

    def starting_at(self, word):
        return Counted(self._reader.starting_at(word), self._taken, word)

    def _take(self, words):
        words = words.tolist()
        assert self._taken.isdisjoint(words) and len(set(words)) == len(words), "words that were read before"
        self._taken.update(words)


@RARE
@pytest.mark.usefixtures("repeatable")
def test_no_word_of_the_randomness_serves_two_draws(monkeypatch):
    """Catches: words that a redrawn tail takes once more, from the rectangles or from its own first try.

    Draws that share a word are no independent draws, which shows in no deviation and no quantile. So the words are
    counted where the client reads them, over several steps, samples included.
    """
    size, words = 100_000, {}
    uncounted = Keystream.reader

    def counted(keystream, *draw):
        return Counted(uncounted(keystream, *draw), words.setdefault((keystream.key, keystream.stream, *draw), set()))

    monkeypatch.setattr(Keystream, "reader", counted)
    Client(Canaries(torch.zeros(5, size))).train(steps=2, sampling_rate=0.5)
    noise = [taken for (_, _, purpose, _), taken in words.items() if purpose == "noise"]
    assert len(noise) == 2
    assert all(len(taken) > size + 1_300 for taken in noise)  # an honest try takes 400


# Adaptive clipping

SHARE = QuantileClipping().share
RATE = QuantileClipping().learning_rate
QUANTILE = QuantileClipping().quantile


def steps_of_norm(up, steps):
    """C at each step of a round that begins at 1, when all noise is small and all records are on one side."""
    move = RATE * QUANTILE if up else -RATE * (1 - QUANTILE)
    return np.exp(move * np.arange(steps))


@pytest.mark.parametrize("up", [pytest.param(True, id="growing"), pytest.param(False, id="shrinking", marks=RARE)])
def test_the_noise_of_adaptive_clipping_follows_its_norm_from_step_to_step(up):
    """Catches: noise that keeps the norm with which the round began, while records are clipped to a larger one."""
    steps, records = 12, torch.zeros(200, 10_000)
    records[:, 0] = 1e5 if up else 0.0  # beyond every norm that is reached, or within it
    released, receipt = Client(Canaries(records)).train(
        steps=steps, clipping="adaptive", expected_batch_size=50.0, noise_multiplier=0.1
    )
    norms = steps_of_norm(up, steps)
    assert math.isclose(receipt.clipping_norm, steps_of_norm(up, steps + 1)[-1], rel_tol=1e-6)
    each = receipt.noise_multiplier * norms / math.sqrt(1 - SHARE) * (1 + ROUNDING_ALLOWANCE)
    low, high = deviation_range(10_000 - 1, math.sqrt(np.square(each).sum()))
    assert low <= root_mean_square(50.0 * released[1:]) <= high


@RARE
def test_the_noise_of_adaptive_clipping_covers_the_count_too():
    """Catches: noise for the gradient's norm alone, though the count is released with it: half a percent too little."""
    rounds, wide = 30, 30_000
    client = Client(Canaries(torch.zeros(0, wide)))
    noise = [client.train(round=r, clipping="adaptive")[0] for r in range(1, rounds + 1)]
    low, high = deviation_range(rounds * wide, (1 + ROUNDING_ALLOWANCE) / math.sqrt(1 - SHARE))
    assert low <= root_mean_square(np.concatenate(noise)) <= high
    assert low > 1 + ROUNDING_ALLOWANCE, "too few draws to tell the two apart"


def test_adaptive_clipping_is_steered_by_the_noisy_count():
    """Catches: a next norm from the true count, which would be on the receipt without any noise.

    The count, centred, is half a record for each that is within C, and its noise sigma / (2 sqrt(share)) records.
    """
    rounds, records, batch = 60, 40, 200.0
    client = Client(Canaries(torch.zeros(records, 2)))
    receipts = [
        client.train(round=r, clipping="adaptive", noise_multiplier=2.0, expected_batch_size=batch)[1]
        for r in range(1, rounds + 1)
    ]
    moves = np.log([receipt.clipping_norm for receipt in receipts])
    noise = batch * (QUANTILE - 0.5 - moves / RATE) - records / 2
    low, high = deviation_range(rounds, 2.0 / (2 * math.sqrt(SHARE)) * (1 + ROUNDING_ALLOWANCE))
    assert low <= root_mean_square(noise) <= high
