"""Rows of a person and views of a record: drawn by its own chances alone, evenly, and clipped as one gradient."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

import fedprivacy as fp
from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.layout import Layout
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE, SampledGaussianSum, poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks import Augmentation, Shard, mirrored, shifted
from fedprivacy.training.batches import AugmentationError, Views, sampled_batches
from fedprivacy.training.cohort import CohortTraining, Trainee
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.optimizers import SGD
from fedprivacy.values.events import PoissonSampledGaussian
from tests.gradients.oracle import cross_entropy

M = 6
KEY = Keystream.from_seed(5, "client-0")
ROWS = (1, 6, 2, 4, 5, 3, 6, 1)
"""Numbers of rows, one for each person: fewer than are drawn, as many, and more."""


def visits(rows=ROWS, seed=0, width=4):
    """A shard of persons with so many rows each; a row's first number is its own."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(sum(rows), width, generator=generator)
    inputs[:, 0] = torch.arange(len(inputs))
    persons = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))
    targets = torch.randint(3, (len(inputs),), generator=generator)
    return fp.Shard(inputs, targets, null=False, persons=persons, most_rows=M)


def drawn(shard, layout, position, sample=None):
    """The numbers of each sampled person's rows that a step computes."""
    sample = np.arange(len(shard)) if sample is None else sample
    ((inputs, targets),) = sampled_batches(shard, sample, layout, None, KEY, position)
    weights = layout.lay_out(inputs, targets)[2].view(len(sample), layout.rows_computed) > 0
    rows = inputs.view(len(sample), layout.rows_computed, -1)[..., 0].int()
    return [own[there].tolist() for own, there in zip(rows, weights, strict=True)]


@pytest.mark.parametrize("per_step", [1, 3])
def test_each_step_draws_so_many_rows_of_a_person_evenly_and_anew(per_step):
    shard, layout = visits(), Layout(M, per_step=per_step)
    steps = [drawn(shard, layout, Position(1 + step // 50, step % 50)) for step in range(600)]
    first = np.cumsum([0, *ROWS])
    for person, count in enumerate(ROWS):
        own = [rows[person] for rows in steps]
        assert all(len(set(rows)) == len(rows) == min(per_step, count) for rows in own)
        seen = np.bincount(np.concatenate(own) - first[person], minlength=count)
        assert len(seen) == count, "only the person's own rows"
        if count > per_step:
            expected = 600 * per_step / count
            spread = expected * (1 - per_step / count) * count / (count - 1)
            assert (np.square(seen - expected) / spread).sum() < chi2.isf(1e-5, count - 1)
            assert sum(a == b for a, b in itertools.pairwise(own)) < 365, "another draw in each step"


def test_the_rows_of_a_person_do_not_tell_who_joins():
    """Each person's first row is drawn as often whether that person, or any other, joins the step or not."""
    shard, layout, steps = visits((2,) * 8), Layout(M, per_step=1), 1500
    joins, firsts = np.zeros((steps, 8)), np.zeros((steps, 8))
    for step in range(steps):
        joins[step, poisson_sample(0.3, 8, KEY, Position(step + 1, 1))] = 1
        firsts[step] = [rows[0] % 2 == 0 for rows in drawn(shard, layout, Position(step + 1, 1))]
    joined, first = (np.stack([1 - given, given]) for given in (joins.T, firsts.T))
    tables = np.einsum("apn,bqn->pqab", joined, first)  # of each two persons, the four cases
    for table in tables.reshape(-1, 2, 2):
        expected = np.outer(table.sum(1), table.sum(0)) / steps
        assert (np.square(table - expected) / expected).sum() < chi2.isf(1e-4 / 64, 1)


def test_who_joins_which_rows_which_views_and_the_noise_are_drawn_by_different_words(monkeypatch):
    drawn_by, subkey = [], Keystream.subkey
    monkeypatch.setattr(Keystream, "subkey", lambda *named: drawn_by.append(named[1:]) or subkey(*named))
    shard, layout = visits(), Layout(M, per_step=2, views=2)
    views = Views(Augmentation(lambda records, chances: records + chances, draws=1), 2, shard.inputs[:0, 0])
    mean = NoisyMean(SampledGaussianSum(PoissonSampledGaussian(0.6, 1.0), 0.5), 4.8, views=views)
    mean.release(GradientEngine(nn.Linear(4, 3), cross_entropy, layout=layout), shard, 0.5, KEY, Position(2, 1))
    assert len(set(drawn_by)) == len(drawn_by) == 4


def test_a_person_s_draw_depends_on_nobody_else():
    """Not on who joins, nor on how many rows others have: only the person's place in the shard decides."""
    layout, now = Layout(M, per_step=2), Position(3, 1)
    shard, other = visits(), visits((6, 6, 1, 4, 1, 1, 1, 6), seed=7)
    together = drawn(shard, layout, now)
    assert [drawn(shard, layout, now, np.array([place]))[0] for place in range(8)] == together
    assert [row - 9 for row in together[3]] == [row - 13 for row in drawn(other, layout, now)[3]]


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def moved(training, engine, shard):
    """The way that one step goes."""
    before = flat_parameters(engine.model)
    update = training.train(engine, shard, steps=1, round=2, keystream=KEY)
    return before - torch.cat([p.flatten() for p in update.parameters.values()])


def clipped_sum(losses, model, norm):
    """The sum of the losses' gradients, each clipped."""
    total = torch.zeros(15, dtype=torch.float64)
    for loss in losses:
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total += gradient * min(1.0, norm / float(gradient.norm()))
    return total


@pytest.mark.parametrize(("per_step", "summed"), [(None, True), (1, False), (3, False), (3, True)])
def test_a_step_moves_by_the_clipped_gradient_of_the_drawn_rows(per_step, summed):
    shard, layout, model = visits(), Layout(M, per_step=per_step, summed=summed), linear().double()
    mean = NoisyMean(SampledGaussianSum(PoissonSampledGaussian(0.6, 1e-7), 0.5), 4.8)
    found = moved(DPSGD(mean, SGD(1.0)), GradientEngine(linear(), cross_entropy, layout=layout), shard)
    joined, by_row, losses = poisson_sample(0.6, len(ROWS), KEY, Position(2, 1)), shard.by_row(), []
    assert 1 < len(joined) < len(ROWS)
    for rows in drawn(shard, layout, Position(2, 1), joined):
        each = cross_entropy(model(by_row.inputs[rows].double()), by_row.targets[rows])
        losses.append(each.sum() / layout.rows_computed if summed else each.mean())
    assert torch.allclose(found.double(), clipped_sum(losses, model, 0.5) / 4.8, atol=1e-5)


@pytest.mark.parametrize(("trials", "seed"), [(40, 0), pytest.param(10_000, 1, marks=pytest.mark.soak)])
def test_a_whole_person_moves_a_step_by_at_most_the_clipping_norm(trials, seed):
    """Whatever rows that person and all others have; the last one leaves, and nobody else's draw changes."""
    torch.manual_seed(0)
    generator, furthest = torch.Generator().manual_seed(seed), 0.0
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    engines = [
        GradientEngine(model, cross_entropy, layout=Layout(M, per_step=per_step, summed=summed))
        for per_step, summed in ((2, False), (3, True), (1, False))
    ]
    for trial in range(trials):
        engine = engines[trial % 3]
        count = int(torch.randint(2, 40, (1,), generator=generator))
        shard = visits(torch.randint(1, M + 1, (count,), generator=generator).tolist(), seed=1000 * seed + trial)
        shard.inputs[torch.rand(count, M, generator=generator) < 0.2] *= 10.0 ** (trial % 13)
        shard.inputs[torch.rand(count, M, generator=generator) < 0.05] = (math.nan, math.inf, -1e30, 1e-40)[trial % 4]
        for parameter in model.parameters():
            parameter.data.copy_(10.0 ** (trial % 5 - 2) * torch.randn(parameter.shape, generator=generator))
        sums = []
        for persons in (count, count - 1):
            batches = sampled_batches(shard, np.arange(persons), engine.layout, None, KEY, Position(1, trial))
            sums += [engine.clipped_sum(*batch, 0.5) for batch in batches]
        furthest = max(furthest, float((sums[0] - sums[1]).norm()) / 0.5)
    assert 0.9 < furthest <= 1.0 + SUM_ALLOWANCE


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rows_per_step": 7}, "rows_per_step is 7; give a whole number from 1 to 6, the most rows"),
        ({"rows_per_step": 0}, "rows_per_step is 0; give a whole number from 1 to 6"),
        ({"rows_per_step": 2.0}, "rows_per_step is 2.0; give a whole number"),
        ({"person_gradient": "median"}, "person_gradient is 'median'; choose one of mean, sum"),
    ],
    ids=str,
)
def test_a_use_of_rows_that_there_is_not_is_refused_in_training_on_a_shard(settings, words):
    plan = {"epsilon": 3.0, "delta": 1e-3, "steps": 2, "sampling_rate": 0.5, "batch_size": 4}
    with pytest.raises(ValueError, match=words):
        fp.train(nn.Linear(4, 3), cross_entropy, visits(), progress=False, **plan, **settings)


# --- views ---

NOW, EVERY = Position(2, 5), np.arange(40)
BOTH = shifted(pixels=1).then(mirrored())
DIMMED = Augmentation(lambda records, chances: records * (0.5 + chances), draws=1)


def records_of(*shape):
    inputs = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    return Shard(inputs, torch.arange(40) % 3)


def seen(views, shard, sample=EVERY, now=NOW):
    """The views of some records."""
    return views.of(shard.inputs[sample], 1, sample, KEY, now)


def made(augmentation, shard, multiplicity=3):
    return Views(augmentation, multiplicity, shard.inputs[:0])


def test_a_record_has_the_same_views_in_any_place_and_company():
    """Catches: chances that are drawn one after the other, so that a record's views tell who joined before it."""
    shard = records_of(1, 6, 6)
    views = made(BOTH, shard)
    together = seen(views, shard)
    assert together.shape == (40, 3, 1, 6, 6)
    for sample in (np.array([17]), np.array([39, 17, 2]), EVERY[::-1].copy()):
        assert torch.equal(seen(views, shard, sample), together[torch.from_numpy(sample)])
    strangers = Shard(shard.inputs.clone(), shard.targets)
    strangers.inputs[torch.arange(40) != 17] = torch.nan
    assert torch.equal(seen(views, strangers)[17], together[17])


def test_chances_are_uniform():
    shard = Shard(torch.ones(3000, 1), torch.zeros(3000))
    found = seen(made(DIMMED, shard, multiplicity=4), shard, np.arange(3000)).flatten() - 0.5
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
    shard = records_of(4)
    shard.inputs[[7, 30]] = 3.0
    halved = Augmentation(lambda records, chances: refusing_threes(records, chances) / 2.0, 1)
    for multiplicity in (1, 3):
        views = seen(made(halved, shard, multiplicity), shard)
        expected = torch.where(shard.inputs == 3.0, 3.0, shard.inputs / 2.0)
        assert torch.equal(views.reshape(40, multiplicity, 4)[:, -1], expected)


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
        made(Augmentation(view, 1), records_of(4))


def brightest_first(records, chances):
    return records[records[:, 0].argsort(descending=True)] if len(records) > 3 else records


def with_those_after_the_third(records, chances):
    return records + records[3:].sum(0)


@pytest.mark.parametrize("view", [brightest_first, with_those_after_the_third])
def test_records_that_are_mixed_where_nobody_looks_are_seen_one_by_one(view):
    """Three made-up records show nothing of it: a part that shows who is in it is computed record by record."""
    shard = records_of(4)
    assert torch.equal(seen(made(Augmentation(view, 1), shard, 1), shard), shard.inputs)


def training(views):
    return DPSGD(NoisyMean(SampledGaussianSum(PoissonSampledGaussian(0.5, 1e-6), 0.05), 1.0, views=views), SGD(1.0))


def engine_of(multiplicity):
    return GradientEngine(linear(), cross_entropy, layout=Layout(views=multiplicity))


@pytest.mark.parametrize("multiplicity", [1, 3])
def test_a_step_moves_by_the_clipped_mean_of_each_records_views(multiplicity):
    shard, model = records_of(4), linear().double()
    views = made(DIMMED, shard, multiplicity)
    found = moved(training(views), engine_of(multiplicity), shard)
    sample = poisson_sample(0.5, 40, KEY, Position(2, 1))
    shown = seen(views, shard, sample, Position(2, 1)).reshape(len(sample), multiplicity, 4).double()
    targets = shard.targets[sample, None].expand(-1, multiplicity)
    losses = [cross_entropy(model(own), target).mean() for own, target in zip(shown, targets, strict=True)]
    expected = clipped_sum(losses, model, 0.05)
    assert (found - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("multiplicity", [1, 3])
def test_clients_that_train_together_see_what_each_sees_alone(multiplicity):
    """Catches: a stack of clients, to whom views are nothing."""
    shard = records_of(4)
    views, computed = made(DIMMED, shard, multiplicity), engine_of(multiplicity)
    one = training(views)
    trainee = Trainee(shard, KEY, one.gradient.mechanism, 1.0, 2)
    (portion,) = CohortTraining(computed, SGD(1.0), views=views).train([trainee], 4)
    update = one.train(engine_of(multiplicity), shard, steps=2, round=4, keystream=KEY)
    assert torch.equal(portion.parameters[0], torch.cat([p.flatten() for p in update.parameters.values()]))
