"""Views of a record: by its own chances alone, averaged before they are clipped, and left out where one fails."""

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.layout import Layout
from fedprivacy.mechanisms.gaussian_sum import SampledGaussianSum, poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks import Augmentation, Shard, mirrored, shifted
from fedprivacy.training.batches import AugmentationError, Views
from fedprivacy.training.cohort import CohortTraining, Trainee
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.optimizers import SGD
from fedprivacy.values.events import PoissonSampledGaussian
from tests.gradients.oracle import cross_entropy

KEY, NOW = Keystream.from_seed(3, "client-0"), Position(2, 5)
EVERY = np.arange(40)
BOTH = shifted(pixels=1).then(mirrored())
DIMMED = Augmentation(lambda records, chances: records * (0.5 + chances), draws=1)


def pictures(records=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Shard(torch.randn(records, 1, 6, 6, generator=generator), torch.arange(records) % 3)


def rows(records=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Shard(torch.randn(records, 4, generator=generator), torch.arange(records) % 3)


def seen(views, shard, sample, key, now):
    """The views of some records, and their targets."""
    return views.of(shard.inputs[sample], 1, sample, key, now), shard.targets[sample]


def made(augmentation, shard, multiplicity=3):
    return Views(augmentation, multiplicity, shard.inputs[:0])


def test_a_record_has_the_same_views_in_any_place_and_company():
    """Catches: chances that are drawn one after the other, so that a record's views tell who joined before it."""
    shard = pictures()
    views = made(BOTH, shard)
    together = seen(views, shard, EVERY, KEY, NOW)[0]
    assert together.shape == (40, 3, 1, 6, 6)
    for sample in (np.array([17]), np.array([39, 17, 2]), EVERY[::-1].copy()):
        assert torch.equal(seen(views, shard, sample, KEY, NOW)[0], together[torch.from_numpy(sample)])
    strangers = Shard(shard.inputs.clone(), shard.targets)
    strangers.inputs[torch.arange(40) != 17] = torch.nan
    assert torch.equal(seen(views, strangers, EVERY, KEY, NOW)[0][17], together[17])


def test_chances_are_uniform():
    shard = Shard(torch.ones(3000, 1), torch.zeros(3000))
    found = seen(made(DIMMED, shard, multiplicity=4), shard, np.arange(3000), KEY, NOW)[0].flatten() - 0.5
    assert found.min() >= 0.0 and found.max() < 1.0
    counts = (found * 10).long().bincount(minlength=10)
    assert (counts - 1200).abs().max() < 6 * (12000 * 0.1 * 0.9) ** 0.5


def refusing_threes(records, chances):
    """Raises on a record of threes, without a branch in torch."""
    if 3.0 in records.numpy():
        raise ValueError("three")
    return records


def test_a_record_whose_view_cannot_be_made_is_in_its_place_as_it_is_and_stops_nobody():
    """Catches: that it is left out, which moves all that come after it to other blocks of the sum."""
    shard = rows()
    shard.inputs[[7, 30]] = 3.0
    halved = Augmentation(lambda records, chances: refusing_threes(records, chances) / 2.0, 1)
    for multiplicity in (1, 3):
        views, targets = seen(made(halved, shard, multiplicity), shard, EVERY, KEY, NOW)
        expected = torch.where(shard.inputs == 3.0, 3.0, shard.inputs / 2.0)
        assert torch.equal(views.reshape(40, multiplicity, 4)[:, -1], expected)
        assert torch.equal(targets, shard.targets)


@pytest.mark.parametrize(
    ("view", "what"),
    [
        (lambda records, chances: records - records.mean(0), "without the others"),
        (lambda records, chances: records.roll(1, 0), "without the others"),
        (lambda records, chances: records + torch.randn_like(records), "draw no other random numbers"),
        (lambda records, chances: records[:, :2], "is \\[3, 2\\]"),
        (lambda records, chances: records.double(), "float64"),
        (lambda records, chances: None, "is a NoneType"),
        (lambda records, chances: records @ torch.ones(7, 4), "no view can be made"),
    ],
    ids=["mean", "neighbour", "random", "shape", "type", "nothing", "fails"],
)
def test_what_is_no_view_of_each_record_is_refused(view, what):
    with pytest.raises(AugmentationError, match=what):
        made(Augmentation(view, 1), rows())


def brightest_first(records, chances):
    return records[records[:, 0].argsort(descending=True)] if len(records) > 3 else records


def with_those_after_the_third(records, chances):
    return records + records[3:].sum(0)


@pytest.mark.parametrize("view", [brightest_first, with_those_after_the_third])
def test_records_that_are_mixed_where_nobody_looks_are_seen_one_by_one(view):
    """Three made-up records show nothing of it: a part that shows who is in it is computed record by record."""
    shard = rows()
    views, _ = seen(made(Augmentation(view, 1), shard, 1), shard, EVERY, KEY, NOW)
    assert torch.equal(views, shard.inputs)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3))


def training(views, noise=1e-6, norm=0.05):
    return DPSGD(NoisyMean(SampledGaussianSum(PoissonSampledGaussian(0.5, noise), norm), 1.0, views=views), SGD(1.0))


def engine(multiplicity):
    return GradientEngine(linear(), cross_entropy, layout=Layout(views=multiplicity))


@pytest.mark.parametrize("multiplicity", [1, 3])
def test_a_step_moves_by_the_clipped_mean_of_each_records_views(multiplicity):
    shard, computed = rows(), engine(multiplicity)
    views = made(DIMMED, shard, multiplicity)
    before = flat_parameters(computed.model)
    update = training(views).train(computed, shard, steps=1, round=2, keystream=KEY)
    moved = before - torch.cat([p.flatten() for p in update.parameters.values()])
    sample, model = poisson_sample(0.5, 40, KEY, Position(2, 1)), linear().double()
    shown, targets = seen(views, shard, sample, KEY, Position(2, 1))
    expected = torch.zeros(15, dtype=torch.float64)
    for record, target in zip(shown.reshape(len(sample), multiplicity, 4), targets, strict=True):
        losses = cross_entropy(model(record.double()), target.expand(multiplicity))
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(losses.mean(), list(model.parameters()))])
        expected += gradient * min(1.0, 0.05 / float(gradient.norm()))
    assert (moved - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("multiplicity", [1, 3])
def test_clients_that_train_together_see_what_each_sees_alone(multiplicity):
    """Catches: a stack of clients, to whom views are nothing."""
    shard = rows()
    views, computed = made(DIMMED, shard, multiplicity), engine(multiplicity)
    one = training(views)
    trainee = Trainee(shard, KEY, one.gradient.mechanism, 1.0, 2)
    (portion,) = CohortTraining(computed, SGD(1.0), views=views).train([trainee], 4)
    update = one.train(engine(multiplicity), shard, steps=2, round=4, keystream=KEY)
    assert torch.equal(portion.parameters[0], torch.cat([p.flatten() for p in update.parameters.values()]))
