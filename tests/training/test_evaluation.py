"""The noisy sum of a local evaluation: what one record may change of it, what is estimated, and how well."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients.per_record import RecordScores
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks import Score, Shard
from fedprivacy.training.evaluation import LocalEvaluation, NoisySums, estimate_scores, unit
from fedprivacy.values.events import PoissonSampledGaussian

SCORES = {
    "error": Score(lambda outputs, targets: targets[:, 0], 0.0, 10.0),
    "right": Score(lambda outputs, targets: targets[:, 1], -1.0, 1.0),
}
EVERYBODY, SILENT = 1.0, 1e-6


def evaluation(rate=EVERYBODY, sigma=SILENT, scores=SCORES):
    return LocalEvaluation(PoissonSampledGaussian(rate, sigma), list(scores.values()))


@cache
def measured(*scores):
    measures = [score.measure for score in scores]
    return RecordScores(nn.Linear(2, 1), lambda o, t: o[:, 0] * t[:, 0], measures, (torch.empty(0, 2),) * 2)


def released(targets, *, of=None, step=1, key=0, inputs=None):
    of, targets = of or evaluation(), torch.tensor(targets, dtype=torch.float32).reshape(-1, 2)
    shard = Shard(torch.zeros(len(targets), 2) if inputs is None else inputs, targets)
    return of.release(measured(*of.scores), shard, Keystream(bytes([key] * 32)), Position(1, step))


def sums(*args, **kwargs):
    return np.array(released(*args, **kwargs).sums)


CROWD = [[3.0, 1.0], [7.0, -1.0], [0.0, 0.5]]


@pytest.mark.parametrize(
    "record",
    [[0.0, -1.0], [10.0, 1.0], [1e30, -1e30], [math.inf, -math.inf], [5.0, 0.0]],
    ids=["least", "most", "beyond", "infinite", "middle"],
)
def test_one_record_changes_the_sum_by_a_vector_of_norm_one_at_most(record):
    change = np.linalg.norm(sums([*CROWD, record]) - sums(CROWD))
    assert change <= 1.0 + ROUNDING_ALLOWANCE
    if record != [5.0, 0.0]:
        assert change >= 1.0 - 1e-3  # nothing of the sensitivity is wasted


def test_a_record_that_cannot_be_scored_changes_nothing():
    before = sums(CROWD)
    for record in ([math.nan, 0.0], [0.0, math.nan]):
        assert (sums([*CROWD, record]) == before).all()
    null = torch.zeros(4, 2)
    null[3] = math.nan
    assert (sums([*CROWD, [1.0, 1.0]], inputs=null) == before).all()


def test_without_noise_the_estimate_is_the_mean_of_what_was_clipped():
    found = estimate_scores(SCORES, [released([*CROWD, [99.0, 0.3], [math.nan, 0.0]])])
    assert found.records == pytest.approx(4, abs=1e-3)
    assert found.means == pytest.approx({"error": (3 + 7 + 0 + 10) / 4, "right": (1 - 1 + 0.5 + 0.3) / 4}, abs=1e-3)
    assert max(found.deviations.values()) < 1e-4
    assert set(found.metrics) == {"clients_records", "clients_error", "clients_right"}


def test_clients_of_different_sampling_rates_count_by_their_records():
    few, many = [[2.0, 0.0]] * 100, [[8.0, 0.0]] * 300
    half = [released(few, of=evaluation(0.5), key=key) for key in range(40)]
    whole = [released(many, key=key) for key in range(40)]
    found = estimate_scores(SCORES, [*half, *whole])
    assert found.records == pytest.approx(40 * 400, abs=400)
    assert found.means["error"] == pytest.approx((2 * 100 + 8 * 300) / 400, rel=0.02)


@pytest.mark.parametrize(("error", "right"), [(5.0, 0.0), (9.6, -0.9), (0.3, 0.97)])
def test_the_deviation_holds_the_noise_of_the_count_and_of_the_sum(error, right):
    """Against slopes of the estimate itself, of two clients with rates and noises of their own; near bounds most."""
    weight, records, rates, sigmas = unit(2), 400.0, (1.0, 0.25), (2.0, 3.0)
    sums = [weight * rate * records * np.array([1.0, error / 5.0 - 1.0, right]) for rate in rates]

    def estimate(moved):
        given = zip(rates, sigmas, moved, strict=True)
        return estimate_scores(SCORES, [NoisySums(PoissonSampledGaussian(r, s), tuple(m)) for r, s, m in given])

    squared = dict.fromkeys(SCORES, 0.0)
    for client, sigma in enumerate(sigmas):
        for place in range(3):
            up, down = (
                estimate([each + sign * (number == client) * np.eye(3)[place] for number, each in enumerate(sums)])
                for sign in (1e-3, -1e-3)
            )
            for name in squared:
                squared[name] += (sigma * (up.means[name] - down.means[name]) / 2e-3) ** 2
    found = estimate(sums)
    assert found.means == pytest.approx({"error": error, "right": right})
    expected = {name: math.sqrt(each) * (1.0 + ROUNDING_ALLOWANCE) for name, each in squared.items()}
    assert found.deviations == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("bounds", [(0.0, 1.5e308), (0.0, 5e-324), (1e300, math.nextafter(1e300, math.inf))])
def test_bounds_may_be_as_wide_or_narrow_as_floats_are(bounds):
    of = evaluation(scores={"one": Score(lambda outputs, targets: targets[:, 0].double() * bounds[1], *bounds)})
    change = sums([*CROWD, [1.0, 1.0]], of=of) - sums(CROWD, of=of)
    assert change == pytest.approx([unit(1)] * 2, abs=1e-3)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0), (-1e308, 1e308)])
def test_bounds_are_two_finite_numbers(bounds):
    with pytest.raises(ValueError, match="bounds"):
        Score(lambda outputs, targets: targets, *bounds)
