"""Clients that train together without privacy end where each of them would end alone."""

from dataclasses import replace

import pytest
import torch

from fedprivacy.flower.simulated.without_privacy import NullMechanism, PlainCohort
from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.stacked import Stack
from fedprivacy.training.algorithms import ALGORITHMS, FEDAVG
from fedprivacy.training.optimizers import SGD
from tests.gradients.oracle import cross_entropy
from tests.training import cohorts
from tests.training.cohorts import model_of


def trainees(**changed):
    """Clients with shards of 0 to 64 records, of whom one hears nobody."""
    return [replace(one, mechanism=NullMechanism(one.mechanism.sampling_rate), **changed) for one in cohorts.trainees()]


def cohort(model, **settings):
    return PlainCohort(GradientEngine(model, cross_entropy), SGD(0.5), loss=cross_entropy, **settings)


def together(training, members):
    """The vectors that each client sends and keeps, and its problem, in the order of the clients."""
    found = {}
    for portion in training.train(members, round=4):
        kept = [None] * len(portion.places) if portion.kept is None else portion.kept
        for place, sent, own in zip(portion.places, portion.parameters, kept, strict=True):
            assert place not in found
            found[place] = (sent.clone(), own, portion.problem)
    return [found[place] for place in range(len(members))]


def alone(training, model, one):
    """The vectors that a client sends and keeps that trains by itself."""
    portion = replace(training, engine=GradientEngine(model, cross_entropy)).alone(0, one, round=4)
    return portion.parameters[0], None if portion.kept is None else portion.kept[0]


@pytest.fixture
def stacked(monkeypatch):
    """Numbers of clients in each stack."""
    seen, clip = [], Stack.clip
    monkeypatch.setattr(Stack, "clip", lambda self, *given: seen.append(len(given[2])) or clip(self, *given))
    return seen


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("ditto", "scaffold") else pytest.mark.exhaustive)
        for name in sorted(ALGORITHMS.keys() - {"fedbn"})  # for which a model needs a normalisation
    ],
)
def test_each_client_ends_where_it_would_end_alone_whatever_the_algorithm_keeps(name, stacked):
    """Catches: gradients that are clipped, too."""
    algorithm = ALGORITHMS[name]()
    own = torch.linspace(0.2, -0.2, 124) if algorithm.keeps else None
    control = torch.linspace(-0.1, 0.1, 124) if algorithm.server else None
    training = cohort(model_of("stacked"), algorithm=algorithm, control=control)
    for one, (sent, kept, problem) in zip(trainees(own=own), together(training, trainees(own=own)), strict=True):
        expected, expected_kept = alone(training, model_of("stacked"), one)
        assert problem is None
        torch.testing.assert_close(sent, expected, rtol=1e-5, atol=1e-6)
        assert (kept is None) == (expected_kept is None)
        if kept is not None:
            torch.testing.assert_close(kept, expected_kept, rtol=1e-4, atol=1e-5)
    assert max(stacked) == 5  # those that take three steps


def test_clients_that_are_not_stacked_end_at_the_same_bits(stacked):
    training = cohort(model_of("one by one"))
    for one, (sent, _, problem) in zip(trainees(), together(training, trainees()), strict=True):
        assert torch.equal(sent, alone(training, model_of("one by one"), one)[0]) and problem is None
    assert not stacked


def spoiled(value, place=3):
    """The clients, of whom one has a record that cannot be trained on, or hardly."""
    members = trainees()
    inputs, targets = members[place].shard.inputs, members[place].shard.targets
    if value is None:
        targets[0] = 9  # of four classes
    else:
        inputs[0] = value
    return members


@pytest.mark.parametrize(("value", "algorithm"), [(torch.inf, ALGORITHMS["local"]()), (1e30, FEDAVG), (None, FEDAVG)])
def test_a_record_without_a_gradient_spoils_its_client_as_it_would_alone_and_nobody_else(value, algorithm):
    """Catches: training without privacy that leaves such a record out, as private training does."""
    training = cohort(model_of("stacked"), algorithm=algorithm)
    whole, found = together(training, trainees()), together(training, spoiled(value))
    for place, (one, other) in enumerate(zip(whole, found, strict=True)):
        assert (other[2] is not None) == (place == 3 and value is None)
        assert place == 3 or torch.equal(one[0], other[0])
    if value is not None:
        expected = alone(training, model_of("stacked"), spoiled(value)[3])
        for part, own in zip(found[3][:2], expected, strict=True):
            assert part is own is None or torch.equal(part.nan_to_num(7.0), own.nan_to_num(7.0))
        assert not torch.cat([t for t in found[3][:2] if t is not None]).isfinite().all() or value == 1e30
