"""A cohort releases what each of its clients would release alone, and its sums have the same bits in any order."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, flat_parameters, stacked
from fedprivacy.gradients.products import as_on_gpu
from fedprivacy.mechanisms import gaussian_sum
from fedprivacy.mechanisms.gaussian_sum import poisson_sample, poisson_samples, release_by_row
from fedprivacy.mechanisms.keystream import Position
from fedprivacy.mechanisms.lattice_noise import lattice_step
from fedprivacy.tasks import Shard
from fedprivacy.training import cohort
from fedprivacy.training.adaptive import CLIPPINGS, QuantileClipping
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.cohort import CohortTraining, PairwiseSum
from fedprivacy.training.dpsgd import DPSGD, NoisyMean
from fedprivacy.training.optimizers import SGD
from tests.gradients.oracle import cross_entropy
from tests.training.cohorts import OPTIMIZERS, RATES, RECORDS, STREAMS, model_of, trainees


def together(model, members, optimizer, clipping="flat", pull=0.0):
    engine = GradientEngine(model, cross_entropy, CLIPPINGS[clipping]())
    adaptive = QuantileClipping() if clipping == "adaptive" else None
    found = {}
    for portion in CohortTraining(engine, optimizer, pull, adaptive=adaptive).train(members, round=4):
        rows = zip(portion.places, portion.parameters, portion.clipping_norms, strict=True)
        found |= {place: (flat.clone(), norm, portion.problem) for place, flat, norm in rows}
    return [found[place] for place in range(len(members))]


def each_alone(model, members, optimizer, clipping="flat", pull=0.0):
    """The parameters at which each client ends by itself, and its clipping norm then."""
    engine = GradientEngine(model, cross_entropy, CLIPPINGS[clipping]())
    adaptive = QuantileClipping() if clipping == "adaptive" else None
    start = flat_parameters(model)
    for member in members:
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        training = DPSGD(NoisyMean(member.mechanism, member.expected_batch_size, adaptive), optimizer, pull)
        update = training.train(engine, member.shard, steps=member.steps, round=4, keystream=member.keystream)
        yield torch.cat([values.flatten() for values in update.parameters.values()]), update.clipping_norm


def marks(pair):
    """Each clipping and each optimizer is in one pair of the quick lane."""
    place, number = pair
    return () if place % len(OPTIMIZERS) == number else pytest.mark.exhaustive if number == 0 else pytest.mark.soak


EVERY_PAIR = [
    pytest.param(clipping, optimizer, marks=marks((place, number)), id=f"{clipping}-{optimizer!r}")
    for place, clipping in enumerate(CLIPPINGS)
    for number, optimizer in enumerate(OPTIMIZERS)
]


@pytest.mark.parametrize(("clipping", "optimizer"), EVERY_PAIR)
def test_each_client_ends_where_it_would_end_alone(clipping, optimizer):
    """They differ by steps of the lattice where one's rounding and the other's fall on two sides."""
    for expected, member, (flat, norm, problem) in zip(
        each_alone(model_of("stacked"), trainees(), optimizer, clipping, 0.1),
        trainees(),
        together(model_of("stacked"), trainees(), optimizer, clipping, 0.1),
        strict=True,
    ):
        assert problem is None
        assert norm == pytest.approx(expected[1], rel=1e-9)
        step = lattice_step(2 * member.mechanism.clipping_norm, len(flat)) / member.expected_batch_size
        assert (flat - expected[0]).abs().max() <= 4 * member.steps * step + 1e-6


@pytest.mark.parametrize("clipping", ["per-layer", "adaptive"])
def test_on_a_gpu_clients_with_convolutions_train_together(monkeypatch, clipping):
    monkeypatch.setattr(stacked, "BYTES_ON_GPU", 2**24)  # a GPU's turn would take a CPU seconds
    expected = list(each_alone(model_of("convolution"), trainees(), SGD(0.5), clipping))
    with as_on_gpu():
        assert GradientEngine(model_of("convolution"), cross_entropy).stack(*trainees()[0].shard.blank) is not None
        found = together(model_of("convolution"), trainees(), SGD(0.5), clipping)
    for one, member, (flat, norm, problem) in zip(expected, trainees(), found, strict=True):
        assert problem is None and norm == pytest.approx(one[1], rel=1e-9)
        step = lattice_step(2 * member.mechanism.clipping_norm, len(flat)) / member.expected_batch_size
        assert (flat - one[0]).abs().max() <= 4 * member.steps * step + 1e-6


@pytest.mark.parametrize("name", ["scaffold", "ditto", "fedper"])
def test_what_clients_keep_and_the_server_sends_counts_in_a_stack_as_it_does_alone(name):
    """Some clients kept a vector, and some did not."""
    model = model_of("stacked")
    size, generator = len(flat_parameters(model)), torch.Generator().manual_seed(1)
    own = [0.3 * torch.randn(size, generator=generator) if number % 3 else None for number in range(len(RECORDS))]
    members = [replace(member, own=kept) for member, kept in zip(trainees(), own, strict=True)]
    control = torch.randn(size, generator=generator) if name == "scaffold" else None
    training = CohortTraining(
        GradientEngine(model, cross_entropy), SGD(0.5), algorithm=ALGORITHMS[name](), control=control
    )
    for portion in training.train(members, round=4):
        for row, place in enumerate(portion.places):
            alone = cohort.try_portion(model, partial(training.alone, place, members[place], 4), [place])
            assert torch.allclose(portion.parameters[row], alone.parameters[0], atol=1e-3)
            assert torch.allclose(portion.kept[row], alone.kept[0], atol=1e-3)


def test_portions_go_by_public_sizes_not_by_how_many_records_there_are(monkeypatch):
    """Catches: an average that is added up, and so rounded, by private numbers of records."""
    monkeypatch.setattr(cohort, "_MOST_BYTES", 5000)
    emptied = [replace(one, shard=Shard(one.shard.inputs[:1], one.shard.targets[:1])) for one in trainees()[2:]]
    assert list(cohort.alike(emptied, 60)) == list(cohort.alike(trainees()[2:], 60))
    assert len(list(cohort.alike(emptied, 60))) > len({one.steps for one in emptied})
    with as_on_gpu():  # it has room for more records, and for the vectors of two clients with 2 GB each
        assert [len(places) for places in cohort.alike(emptied[:4], 60)] == [3, 1]
        assert [len(places) for places in cohort.alike(emptied[:4], 2**25 - 1000)] == [2, 1, 1]


def test_a_client_that_fails_fails_alone():
    members = trainees()
    members[2] = replace(members[2], shard=Shard(torch.randn(6, 9), torch.zeros(6).long()))
    expected = together(model_of("stacked"), trainees(), SGD(0.5))
    for place, (flat, _, problem) in enumerate(together(model_of("stacked"), members, SGD(0.5))):
        assert (problem is not None) == (place == 2)
        assert place == 2 or torch.allclose(flat, expected[place][0], atol=1e-5)


# Its parts


def test_samples_of_many_clients_are_those_of_each(monkeypatch):
    """Also where a large shard among small ones is sampled by itself."""
    for many in (gaussian_sum._MANY_RECORDS, 0, 20):
        monkeypatch.setattr(gaussian_sum, "_MANY_RECORDS", many)
        samples = poisson_samples(np.array(RATES), RECORDS, STREAMS, Position(2, 1))
        assert any(len(sample) for sample in samples)
        for sample, rate, records, keystream in zip(samples, RATES, RECORDS, STREAMS, strict=True):
            assert np.array_equal(sample, poisson_sample(rate, records, keystream, Position(2, 1)))


@pytest.mark.parametrize("dimension", [33, 40_001])
def test_the_noise_of_many_clients_is_that_of_each(dimension):
    totals = torch.randn(len(STREAMS), dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own_mechanisms = [member.mechanism for member in trainees()]
    released = release_by_row(own_mechanisms, totals, STREAMS, Position(3, 2))
    for row, mechanism, total, keystream in zip(released, own_mechanisms, totals, STREAMS, strict=True):
        own = mechanism.release(lambda *_, total=total: total, 0, keystream, Position(3, 2))
        assert torch.equal(row, own)


VECTORS = torch.randn(37, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e3
LEFT_OUT = {3, 20, 36}


def added(some):
    """The sum of some ranks, one after another."""
    sums = PairwiseSum()
    for rank in some:
        sums.skip(rank) if rank in LEFT_OUT else sums.add([rank], VECTORS[rank : rank + 1].clone())
    return sums


EXPECTED = added(range(37)).total


def test_it_is_the_sum():
    kept = [rank for rank in range(37) if rank not in LEFT_OUT]
    assert torch.allclose(EXPECTED, VECTORS[kept].sum(0), rtol=1e-12)


def test_no_order_and_no_division_changes_a_bit():
    for seed in range(20):
        draw, ranks = random.Random(seed), list(range(37))
        draw.shuffle(ranks)
        cuts = sorted(draw.sample(range(38), 4))
        sums = [added(ranks[start:stop]) for start, stop in zip([0, *cuts], [*cuts, 37], strict=True)]
        draw.shuffle(sums)
        whole = PairwiseSum()
        for some in sums:
            whole.join(some)
        assert torch.equal(whole.total, EXPECTED)
