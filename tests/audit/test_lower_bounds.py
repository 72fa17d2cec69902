"""Lower bounds on what really runs: near the claim where it is true, above it where a bug is planted."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.audit import canaries
from fedprivacy.audit import lower_bounds as bounds
from fedprivacy.audit.canaries import OwnRecord
from fedprivacy.audit.lower_bounds import DENSE, LAYERS, OPPOSING, OWN_RECORD, OWN_RECORD_TRAINED, PER_STEP, SPREAD
from fedprivacy.audit.real_client import AuditedTraining, new_parameters, parameters_of
from fedprivacy.gradients import FlatClipping, engine
from fedprivacy.mechanisms import gaussian_sum
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import RECORD, Unit

SURE = 0.9999
SIZES = (300, 60, 8)
DELTA = 1e-5
NOISE = {1: 3.944, 3: 1.675, 8: 0.9364}
"""Noise multipliers whose epsilon is at most that, in the facts' setting: q 0.1, T 100, delta 1e-5."""

LEAST = {1: 0.95, 3: 2.8, 8: 7.6}


def training_of(epsilon, **changed):
    event = PoissonSampledGaussian(0.1, NOISE[epsilon])
    return AuditedTraining(**{"event": event, "steps": 100, "delta": DELTA, "clipping_norm": 1.0} | changed)


@pytest.fixture
def few_steps(monkeypatch):
    """Enough for what is far from the claim."""
    monkeypatch.setattr(bounds, "MOST_STEPS", 25)


def found(training, families=(), seed=1, confidence=SURE, sizes=SIZES):
    stated = bounds.per_step(sizes, training, seed=seed, confidence=confidence, families=families)
    return {bound.name: bound.epsilon for bound in stated}


@pytest.mark.exhaustive
@pytest.mark.parametrize("epsilon", [3, *(pytest.param(epsilon, marks=pytest.mark.soak) for epsilon in (1, 8))])
def test_the_bound_by_steps_is_near_the_claim(epsilon):
    training = training_of(epsilon)
    found_by_steps = found(training, sizes=(9610,), confidence=0.95)
    assert list(found_by_steps) == [PER_STEP]
    assert LEAST[epsilon] <= found_by_steps[PER_STEP] <= training.epsilon <= epsilon


# Planted bugs


def noise_times(monkeypatch, factor):
    """Scale the noise where it is added; `factor` may be an array over the coordinates."""
    original = gaussian_sum.add_lattice_noise

    def scaled(total, scale, step, read, dtype=None):
        noise = original(torch.zeros_like(total), scale, step, read, dtype)
        return (total + torch.as_tensor(factor) * noise).to(dtype)

    monkeypatch.setattr(gaussian_sum, "add_lattice_noise", scaled)


def no_noise_in_one_small_layer(patch):
    noise_times(patch, np.repeat([1.0, 0.0], [360, 8]).astype(np.float32))


def each_layer_clipped_to_the_whole_norm(patch):
    patch.setattr(FlatClipping, "groups", lambda clipping, names: list(range(len(names))))


def the_largest_coordinate_as_the_norm(patch):
    def largest(pieces, groups, number):
        sizes = [piece.gradients().flatten(1).abs().amax(1) for piece in pieces]
        return torch.stack(sizes).amax(0)[None].double() ** 2

    patch.setattr(engine, "squared_norms", largest)


def a_clip_that_gives_way_to_very_long_gradients(patch):
    scales = FlatClipping.scales
    patch.setattr(FlatClipping, "scales", lambda *given: scales(*given).clamp(1e-2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("plant", "shown"),
    [
        (no_noise_in_one_small_layer, LAYERS),
        (each_layer_clipped_to_the_whole_norm, SPREAD),
        (the_largest_coordinate_as_the_norm, DENSE),
        (a_clip_that_gives_way_to_very_long_gradients, OPPOSING),
    ],
)
def test_a_bug_is_shown_by_the_canaries_that_are_made_for_it_and_not_by_those_of_one_coordinate(
    plant, shown, monkeypatch, few_steps
):
    plant(monkeypatch)
    training = training_of(3)
    stated = found(training, () if shown == LAYERS else (shown,))
    assert stated[shown] > training.epsilon
    assert stated[PER_STEP] <= training.epsilon


# A task of one's own

DIGITS = fp.tasks.Digits()


@functools.cache
def scans():
    return DIGITS.shard(fp.ShardSource(partition_id=0, num_partitions=10))


def of_digits(epsilon):
    event = PoissonSampledGaussian(0.1, NOISE[epsilon], NeighbouringRelation.ZERO_OUT)
    return training_of(epsilon, event=event, clipping_norm=0.3, learning_rate=2.5, expected_batch_size=20.0)


@pytest.mark.exhaustive
def test_a_record_of_the_task_shows_nearly_all_that_is_claimed_and_no_more():
    training = of_digits(3)
    bound = bounds.own_record(DIGITS, scans(), training, seed=1, confidence=SURE)
    assert bound.name == OWN_RECORD
    assert bound.relation is NeighbouringRelation.ZERO_OUT
    assert "100% of the clipping norm" in bound.assumptions
    assert 0.85 * training.epsilon < bound.epsilon <= training.epsilon


def test_a_record_of_the_task_shows_noise_that_was_halved(monkeypatch, few_steps):
    noise_times(monkeypatch, 0.5)
    assert bounds.own_record(DIGITS, scans(), of_digits(3), seed=1, confidence=SURE).epsilon > 3.0


# A trained model


@pytest.fixture(scope="module")
def fitted():
    """Parameters under which the records' gradients are short: a model that was trained without privacy."""
    torch.manual_seed(1)
    model = DIGITS.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        DIGITS.loss(model(scans().inputs), scans().targets).mean().backward()
        optimizer.step()
    return parameters_of(model)


@pytest.mark.exhaustive
def test_a_bug_that_shows_when_the_model_has_learnt_is_shown_at_the_trained_model(fitted, monkeypatch, few_steps):
    """Short gradients are lengthened, and too far."""
    scales = FlatClipping.scales

    def lengthened(clipping, squared, norm):
        usual = scales(clipping, squared, norm)
        return torch.where(squared < norm**2, 3.0 * norm / squared.sqrt(), usual)

    monkeypatch.setattr(FlatClipping, "scales", lengthened)
    training = of_digits(3)
    new, trained = bounds.own_records(DIGITS, scans(), training, seed=1, confidence=SURE, trained=fitted)
    assert new.epsilon <= training.epsilon < trained.epsilon


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [math.nan, 1e35])
def test_a_model_that_diverged_shows_nothing(fitted, number):
    diverged = {name: np.full_like(values, number) for name, values in fitted.items()}
    assert bounds.own_record(DIGITS, scans(), of_digits(3), seed=1, confidence=SURE, trained=diverged) is None


# One run


@pytest.mark.exhaustive
def test_guesses_about_one_run_show_a_fifth_of_the_noise(monkeypatch):
    noise_times(monkeypatch, 0.2)
    training = training_of(1)
    stated = bounds.one_run_bounds((3000,), training, seed=1, confidence=0.95)
    assert all(bound.epsilon > training.epsilon for bound in stated)


@pytest.mark.exhaustive
def test_all_bounds_together_keep_the_confidence_that_was_asked_for(fitted, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_STEPS", 10)
    stated = bounds.lower_bounds(DIGITS, scans(), of_digits(3), seed=1, confidence=0.9, trained=fitted)
    names = [bound.name for bound in stated]
    assert set(names) == {*bounds.NAMES, OWN_RECORD_TRAINED}
    assert 1.0 - sum(1.0 - bound.confidence for bound in stated) == pytest.approx(0.9)
    assert len({bound.confidence for bound in stated}) == 1 and len(set(names)) == len(names)
    assert all(0.0 <= bound.epsilon <= 3.0 and bound.delta == DELTA and bound.view == "server" for bound in stated)


# Canaries are found in what the real client released, and by nothing but directions and signs

FEW = (200, 40, 5)
SILENT = 1e-3
"""A noise multiplier that leaves a release readable."""

TRAINING = AuditedTraining(event=PoissonSampledGaussian(0.4, SILENT), steps=3, delta=1e-5, clipping_norm=0.3)
FAMILIES = (canaries.one_coordinate, canaries.opposing, canaries.spread, canaries.dense)


def read(planted, training, steps=2):
    return list(planted.observe(training, steps, seed=3))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize(
    ("relation", "unit"),
    [
        (NeighbouringRelation.ZERO_OUT, RECORD),
        pytest.param(NeighbouringRelation.ADD_OR_REMOVE_ONE, RECORD, marks=pytest.mark.exhaustive),
        pytest.param(NeighbouringRelation.ZERO_OUT, Unit("patient", 8), marks=pytest.mark.exhaustive),
    ],
)
def test_a_reading_is_the_signed_number_of_canaries_that_joined(family, relation, unit):
    """Without noise: who joined is known, directions are orthogonal, and each record is clipped to C exactly.

    So is a person, with one row or with two.
    """
    training = replace(TRAINING, event=replace(TRAINING.event, relation=relation), unit=unit)
    planted = family(FEW, training, np.random.default_rng(0))
    for values, joined in read(planted, training):
        assert np.abs(values - joined).max() < 0.03
        assert np.abs(joined).max() >= 2
        assert np.ptp(joined) > 0


def test_canaries_of_one_coordinate_are_in_every_layer_of_a_large_model():
    planted = canaries.one_coordinate((60_000, 3_000, 2), TRAINING, np.random.default_rng(0))
    by_layer = np.histogram(planted.directions, bins=[0, 60_000, 63_000, 63_002])[0]
    assert by_layer.min() >= 1
    assert by_layer.sum() <= 20_002
    assert len(np.unique(planted.directions)) == planted.directions.size


def test_dense_canaries_fill_nearly_all_coordinates_alike_and_are_orthogonal():
    planted = canaries.dense(FEW, TRAINING, np.random.default_rng(0))
    rows = planted.shard.inputs.unique(dim=0).double().numpy() / (canaries.LONG * 0.3)
    assert np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-5)
    assert ((rows != 0.0).sum(axis=1) == 128).all()
    assert len(np.unique(np.abs(rows).round(6))) == 2


class Lines(fp.Task):
    """Records whose gradients are easily written down: (input, 1) times 2 (output - target)."""

    def model(self):
        return torch.nn.Linear(3, 1)

    def loss(self, outputs, targets):
        return (outputs[:, 0] - targets) ** 2

    def shard(self, source):
        raise NotImplementedError


def test_a_short_gradient_counts_as_much_as_it_is_long():
    shard = Shard(torch.full((1, 3), 1e-3), torch.tensor([30.0]))
    record = OwnRecord.longest(Lines(), shard, new_parameters(Lines(), 1))
    event = PoissonSampledGaussian(1.0, SILENT, NeighbouringRelation.ZERO_OUT)
    training = replace(TRAINING, event=event, clipping_norm=10.0 * record.norm)
    ((values, joined),) = record.observe(training, 1, seed=1)
    assert values[0] / joined[0] == pytest.approx(0.1, rel=0.01)


def test_no_record_without_a_finite_gradient_serves():
    nothing = Shard(torch.full((2, 3), float("nan")), torch.zeros(2))
    for shard in (nothing, Shard(torch.zeros(0, 3), torch.zeros(0))):
        assert OwnRecord.longest(Lines(), shard, new_parameters(Lines(), 1)) is None
