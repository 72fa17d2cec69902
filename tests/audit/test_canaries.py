"""Canaries are found in what the real client released, and by nothing but directions and signs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy.audit import canaries
from fedprivacy.audit.canaries import OwnRecord
from fedprivacy.audit.real_client import AuditedTraining, new_parameters
from fedprivacy.tasks import Shard
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.unit import RECORD, Unit

SIZES = (200, 40, 5)
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
    planted = family(SIZES, training, np.random.default_rng(0))
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
    planted = canaries.dense(SIZES, TRAINING, np.random.default_rng(0))
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
