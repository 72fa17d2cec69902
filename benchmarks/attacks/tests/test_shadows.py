"""Shadow models: who is a member of which, and how a model takes each record."""

import numpy as np
import pytest
import torch
from scipy.special import logit
from torch import nn

from benchmarks.attacks.shadows import logit_scaled, losses_of, train_shadows
from benchmarks.attacks.tests.memorised import TRAINING, Misnamed
from benchmarks.attacks.trainers import WithoutPrivacy, WithPrivacy, new_model
from fedprivacy.tasks import Task
from fedprivacy.values.budget import PrivacyBudget

TASK = Misnamed()


def test_a_model_is_trained_on_its_members_and_on_nobody_else():
    seen = []

    def trainer(records, seed):
        seen.append((records, seed))
        return new_model(TASK, seed)

    shadows = train_shadows(TASK, TASK.records, trainer, models=5, seed=7)
    assert [seed for _, seed in seen] == [7, 8, 9, 10, 11]
    for (records, seed), inside, losses in zip(seen, shadows.members, shadows.losses, strict=True):
        assert torch.equal(records.inputs, TASK.records.inputs[torch.from_numpy(inside)])
        assert torch.equal(records.targets, TASK.records.targets[torch.from_numpy(inside)])
        assert losses == pytest.approx(losses_of(TASK, new_model(TASK, seed), TASK.records))


def test_every_record_is_a_member_of_about_half_of_the_models_by_a_coin_of_its_own():
    members = train_shadows(TASK, TASK.records, lambda records, seed: new_model(TASK, 0), models=60, seed=1).members
    coins, four_deviations = members.size, 4.0
    assert abs(members.mean() - 0.5) < four_deviations * 0.5 / np.sqrt(coins)
    assert len({inside.tobytes() for inside in members}) == 60
    assert members.sum(axis=1).std() > 0.0  # halves of one size would make neighbours by replacement


def test_a_confidence_is_logit_scaled():
    confidence = np.array([1e-9, 0.1, 0.5, 0.9, 1.0 - 1e-9])
    assert logit_scaled(-np.log(confidence)) == pytest.approx(logit(confidence), rel=1e-6)
    assert np.isfinite(logit_scaled(np.array([0.0, 700.0]))).all()


class Sure(Task):
    """A model whose confidence float32 cannot tell from 1."""

    def model(self):
        return nn.Identity()

    def shard(self, source):
        raise NotImplementedError


def test_losses_are_told_apart_where_float32_sees_none():
    records = type(TASK.records)(torch.tensor([[25.0, 0.0], [30.0, 0.0]]), torch.tensor([0, 0]))
    first, second = losses_of(Sure(), nn.Identity(), records)
    assert (first, second) == pytest.approx((np.exp(-25.0), np.exp(-30.0)), rel=1e-3)


def test_what_is_no_logarithm_of_a_confidence_is_refused():
    task = Misnamed()
    task.loss = lambda outputs, targets: outputs[:, 0]
    with pytest.raises(ValueError, match="need finite ones >= 0"):
        losses_of(task, new_model(task, 0), task.records)


@pytest.mark.exhaustive
def test_a_trainer_repeats_itself_executes_what_it_says_and_leaves_torch_s_generator_alone():
    without = WithoutPrivacy(TASK, TRAINING)
    private = WithPrivacy(TASK, TRAINING, PrivacyBudget(3.0, 1e-4), 0.5)
    for trainer in (without, private):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        first, second, other = (losses_of(TASK, trainer(TASK.records, seed), TASK.records) for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), before)
        assert (first == second).all() and (first != other).any()
    trained = private.trained(TASK.records, seed=1)
    assert private.history == {trained.event: trained.steps}
    assert trained.epsilon <= 3.0
    assert trained.event.relation == "add-or-remove-one"  # the coins make neighbours of this kind
