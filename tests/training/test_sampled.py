"""Rows of a person: drawn anew for each step, evenly and by nobody else's records, and clipped as one gradient."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

import fedprivacy as fp
from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.layout import Layout
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE, SampledGaussianSum, poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.tasks import Augmentation
from fedprivacy.training.batches import Views, sampled_batches
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


@pytest.mark.parametrize(("per_step", "summed"), [(None, True), (1, False), (3, False), (3, True)])
def test_a_step_moves_by_the_clipped_gradient_of_the_drawn_rows(per_step, summed):
    torch.manual_seed(0)
    model, layout = nn.Linear(4, 3), Layout(M, per_step=per_step, summed=summed)
    shard, norm, rate = visits(), 0.5, 0.6
    mean = NoisyMean(SampledGaussianSum(PoissonSampledGaussian(rate, 1e-7), norm), rate * len(ROWS))
    before = torch.cat([p.detach().clone().flatten() for p in model.parameters()])
    engine = GradientEngine(model, cross_entropy, layout=layout)
    update = DPSGD(mean, SGD(1.0)).train(engine, shard, steps=1, round=2, keystream=KEY)
    moved = before - torch.cat([p.flatten() for p in update.parameters.values()])

    torch.manual_seed(0)
    model, by_row = nn.Linear(4, 3).double(), shard.by_row()
    joined, expected = poisson_sample(rate, len(ROWS), KEY, Position(2, 1)), torch.zeros(15, dtype=torch.float64)
    assert 1 < len(joined) < len(ROWS)
    for rows in drawn(shard, layout, Position(2, 1), joined):
        losses = cross_entropy(model(by_row.inputs[rows].double()), by_row.targets[rows])
        loss = losses.sum() / layout.rows_computed if summed else losses.mean()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        expected += gradient * min(1.0, norm / float(gradient.norm())) / (rate * len(ROWS))
    assert torch.allclose(moved.double(), expected, atol=1e-5)


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
