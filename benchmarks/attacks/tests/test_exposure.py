"""Exposure of inserted canaries: their ranks, in bits."""

import math

import numpy as np
import torch

from benchmarks.attacks.exposure import LEARNED_NOTHING, canaries, exposed, exposures
from benchmarks.attacks.tests.memorised import TRAINING, Misnamed
from benchmarks.attacks.trainers import WithoutPrivacy, WithPrivacy, new_model
from fedprivacy.tasks import Shard
from fedprivacy.values.budget import PrivacyBudget

TASK = Misnamed(150)


def test_first_of_all_has_all_bits_last_has_none_and_equals_count_against_the_attacker():
    candidates = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert exposures(np.array([0.0, 1.5, 9.0]), candidates).tolist() == [3.0, 2.0, 0.0]
    assert exposures(np.array([1.0, 1.5]), candidates).tolist() == [2.0, 2.0]


def test_what_was_not_learned_has_the_exposure_of_a_random_rank():
    """Exponential with mean 1 / ln 2 but for the few ranks: so is its deviation, and four of them are 6e-5."""
    found = exposed(
        TASK, TASK.records, lambda joined, seed: new_model(TASK, seed), inserted=400, candidates=2000, seed=1
    )
    assert abs(found.mean() - LEARNED_NOTHING) < 4.0 * LEARNED_NOTHING / math.sqrt(400) + 0.01


def test_memorised_canaries_are_exposed_and_with_privacy_they_are_not():
    given = {"inserted": 40, "candidates": 1000, "seed": 2}
    without = exposed(TASK, TASK.records, WithoutPrivacy(TASK, TRAINING), **given)
    private = WithPrivacy(TASK, TRAINING, PrivacyBudget(1.0, 1e-4), 0.5)
    assert without.mean() > 3.0 * LEARNED_NOTHING
    assert exposed(TASK, TASK.records, private, **given).mean() < 2.0 * LEARNED_NOTHING


def test_the_inserted_ones_alone_join_the_shard():
    seen = []

    def trainer(joined, seed):
        seen.append(joined)
        return new_model(TASK, seed)

    exposed(TASK, TASK.records, trainer, inserted=3, candidates=5, seed=4)
    made_up = canaries(TASK.records, 8, seed=4)
    assert torch.equal(seen[0].inputs, torch.cat([TASK.records.inputs, made_up.inputs[:3]]))
    assert torch.equal(seen[0].targets, torch.cat([TASK.records.targets, made_up.targets[:3]]))


def test_a_canary_is_made_of_what_records_have_and_is_none_of_them():
    scans = Shard(TASK.records.inputs.reshape(-1, 1, 8, 8), TASK.records.targets)
    made_up = canaries(scans, 50, seed=0)
    assert made_up.inputs.shape == (50, 1, 8, 8) and made_up.inputs.dtype == scans.inputs.dtype
    for row in range(8):
        for column in range(8):
            assert set(made_up.inputs[:, 0, row, column].tolist()) <= set(scans.inputs[:, 0, row, column].tolist())
    assert not any((scans.inputs == canary).flatten(1).all(1).any() for canary in made_up.inputs)
    assert made_up.targets.dtype == scans.targets.dtype
