"""Membership inference: the formulas, its power where a model has memorised, and none where it has learned nothing."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.attacks.limits import breaches
from benchmarks.attacks.membership import (
    LOSS,
    OFFLINE,
    ONLINE,
    OWN_VARIANCE,
    QUANTILE,
    attacked,
    features_of,
    lira_offline,
    lira_online,
    quantile_regression,
)
from benchmarks.attacks.shadows import train_shadows
from benchmarks.attacks.tests.memorised import TRAINING, Misnamed
from benchmarks.attacks.trainers import WithoutPrivacy, WithPrivacy, new_model
from fedprivacy.values.budget import PrivacyBudget

TASK = Misnamed()

CHANCE = norm.isf(0.5e-4)
"""Standard deviations that chance passes once in 10,000 tests."""


def made_up(models, records=20):
    rng = np.random.default_rng(models)
    return rng.normal(size=records), rng.normal(size=(models, records)), rng.random((models, records)) < 0.5


def test_lira_is_the_likelihood_ratio_of_two_normals_with_variances_of_their_own():
    confidences, shadows, members = made_up(OWN_VARIANCE)
    scores = lira_online(confidences, shadows, members)
    for record, score in enumerate(scores):
        sides = [shadows[members[:, record] == inside, record] for inside in (True, False)]
        inside, outside = (norm(side.mean(), side.std(ddof=1)).logpdf(confidences[record]) for side in sides)
        assert score == pytest.approx(inside - outside)


def test_lira_with_few_shadow_models_takes_one_variance_for_all_records():
    confidences, shadows, members = made_up(8, records=200)
    members[0], members[1] = True, False
    means = [
        np.array([shadows[members[:, record] == side, record].mean() for record in range(200)])
        for side in (True, False)
    ]
    deviations = []
    for side, mean in zip((True, False), means, strict=True):
        squares = ((shadows - mean) ** 2)[members == side]
        deviations.append(math.sqrt(squares.sum() / ((members == side).sum() - 200)))
    inside, outside = (norm.logpdf(confidences, m, s) for m, s in zip(means, deviations, strict=True))
    assert lira_online(confidences, shadows, members) == pytest.approx(inside - outside)


def test_lira_offline_orders_by_how_unlikely_a_confidence_is_and_never_looks_at_members():
    confidences, shadows, members = made_up(OWN_VARIANCE)
    scores = lira_offline(confidences, shadows, members)
    sides = [shadows[~members[:, record], record] for record in range(20)]
    likely = [norm(s.mean(), s.std(ddof=1)).cdf(c) for s, c in zip(sides, confidences, strict=True)]
    assert (np.argsort(scores) == np.argsort(likely)).all()
    assert (lira_offline(confidences, np.where(members, 99.0, shadows), members) == scores).all()


def test_a_record_of_which_the_shadow_models_know_one_side_alone_decides_nothing():
    confidences, shadows, members = made_up(8)
    members[:, 0], members[:, 1] = True, False
    assert (lira_online(confidences, shadows, members)[:2] == 0.0).all()
    assert lira_offline(confidences, shadows, members)[0] == 0.0


def test_the_regression_measures_each_record_by_others_like_it():
    """Records of one kind have high confidences, members or not: what counts is who stands out among its kind."""
    rng = np.random.default_rng(0)
    kind = rng.random(1200) < 0.5
    member = rng.random(1200) < 0.5
    confidences = 10.0 * kind + 3.0 * member + rng.normal(size=1200)
    known = ~member & (rng.random(1200) < 0.5)
    scores = quantile_regression(confidences, kind[:, None].astype(float), known)
    asked = ~known
    assert (scores[asked & member] > 1.3).mean() > 0.8
    assert (scores[asked & ~member] > 1.3).mean() < 0.2


def test_the_regression_sees_classes_as_ones():
    features = features_of(TASK.records)
    assert features.shape == (300, 64 + 10)
    assert (features[:, 64:].argmax(axis=1) == TASK.records.targets.numpy()).all()


@pytest.fixture(scope="module")
def memorised():
    shadows = train_shadows(TASK, TASK.records, WithoutPrivacy(TASK, TRAINING), models=9, seed=0)
    return attacked(shadows, TASK.records, targets=3)


def test_every_attack_finds_the_members_of_a_model_that_has_memorised_them(memorised):
    assert set(memorised) == {LOSS, QUANTILE, OFFLINE, ONLINE}
    assert all(roc.area > 0.85 for roc in memorised.values())
    assert memorised[ONLINE].at(0.01).low > 0.1


@pytest.mark.exhaustive
def test_such_a_model_would_breach_what_epsilon_1_allows(memorised):
    history = WithPrivacy(TASK, TRAINING, PrivacyBudget(1.0, 1e-4), 0.5).history
    assert all(breaches(roc, history) for roc in memorised.values())


def test_no_attack_finds_members_of_models_that_have_not_seen_them():
    """The whole path, on models that learned nothing; the area leaves the band once in 10,000 such tests."""
    records = TASK.records
    shadows = train_shadows(TASK, records, lambda members, seed: new_model(TASK, seed), models=9, seed=0)
    for roc in attacked(shadows, records, targets=1).values():
        deviation = math.sqrt((roc.members + roc.others + 1) / (12 * roc.members * roc.others))
        assert abs(roc.area - 0.5) < CHANCE * deviation


@pytest.mark.exhaustive
def test_no_attack_breaches_what_epsilon_allows():
    trainer = WithPrivacy(TASK, TRAINING, PrivacyBudget(3.0, 1e-4), 0.5)
    found = attacked(train_shadows(TASK, TASK.records, trainer, models=5, seed=0), TASK.records, targets=2)
    assert not any(breaches(roc, trainer.history) for roc in found.values())


def test_the_attacker_s_own_records_are_left_out_of_the_regression_s_curve():
    shadows = train_shadows(TASK, TASK.records, lambda members, seed: new_model(TASK, seed), models=1, seed=0)
    found = attacked(shadows, TASK.records, targets=1)
    assert set(found) == {LOSS, QUANTILE}  # nobody else's models are there
    assert found[QUANTILE].members == found[LOSS].members == shadows.members.sum()
    assert 0.3 < found[QUANTILE].others / found[LOSS].others < 0.7


@pytest.mark.exhaustive
@pytest.mark.parametrize("targets", [0, 2])
def test_only_models_that_are_there_are_attacked(targets):
    shadows = train_shadows(TASK, TASK.records, lambda members, seed: new_model(TASK, seed), models=1, seed=0)
    with pytest.raises(ValueError, match="choose from 1 to 1"):
        attacked(shadows, TASK.records, targets=targets)
