"""Attacks on real records: people's visits to places, and handwritten digits."""

from pathlib import Path

import pytest

from benchmarks.attacks.archives import Locations, inversion
from benchmarks.attacks.limits import breaches
from benchmarks.attacks.membership import LOSS, OFFLINE, ONLINE, attacked
from benchmarks.attacks.shadows import train_shadows
from benchmarks.attacks.trainers import Training, WithoutPrivacy, WithPrivacy
from fedprivacy.values.budget import PrivacyBudget

DATA = Path(__file__).parents[4] / "shared" / "data"
TRAINING = Training(steps=100, sampling_rate=0.5, batch_size=1252.5, learning_rate=0.01)

if not (DATA / "location30.npz").exists():
    pytest.skip("the records are not beside the repository", allow_module_level=True)

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def task():
    return Locations(DATA / "location30.npz", 1.0)


def test_without_privacy_membership_inference_works(task):
    shadows = train_shadows(task, task.records, WithoutPrivacy(task, TRAINING), models=9, seed=0)
    found = attacked(shadows, task.records, targets=2)
    assert found[LOSS].area > 0.8
    assert found[ONLINE].area > 0.93
    assert found[ONLINE].at(0.001).low > 0.1
    epsilon_3 = WithPrivacy(task, TRAINING, PrivacyBudget(3.0, 1e-5), 0.5).history
    assert breaches(found[OFFLINE], epsilon_3) and breaches(found[ONLINE], epsilon_3)


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_with_privacy_every_attack_stays_below_what_epsilon_allows(task, epsilon):
    trainer = WithPrivacy(task, TRAINING, PrivacyBudget(epsilon, 1e-5), 0.5)
    found = attacked(train_shadows(task, task.records, trainer, models=5, seed=0), task.records, targets=2)
    assert not any(breaches(roc, trainer.history) for roc in found.values())


def test_a_digit_is_recovered_without_noise_and_not_with_it():
    without, noisy = inversion(DATA, noise_multiplier=1.0)
    assert without.psnr > 60.0
    assert noisy.psnr < 12.0
