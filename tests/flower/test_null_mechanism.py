"""Clients that train together without privacy end where each of them would end alone."""

from dataclasses import replace

import pytest
import torch

from fedprivacy.flower.simulated.without_privacy import NullMechanism, PlainCohort
from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.stacked import Stack
from fedprivacy.tasks import Augmentation
from fedprivacy.training.algorithms import ALGORITHMS, FEDAVG
from fedprivacy.training.batches import Views
from fedprivacy.training.optimizers import SGD, Adam
from tests.gradients.oracle import cross_entropy
from tests.training import cohorts
from tests.training.cohorts import OPTIMIZERS, model_of

CONTROL = torch.linspace(-0.1, 0.1, 124)


def trainees(**changed):
    """Clients with shards of 0 to 64 records, of whom one hears nobody."""
    return [replace(one, mechanism=NullMechanism(one.mechanism.sampling_rate), **changed) for one in cohorts.trainees()]


def cohort(model, optimizer=SGD(0.5), views=None, **settings):  # noqa: B008 - frozen
    engine = GradientEngine(model, cross_entropy, layout=Layout(views=views.multiplicity if views else 1))
    return PlainCohort(engine, optimizer, views=views, loss=cross_entropy, **settings)


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
    engine = GradientEngine(model, cross_entropy, layout=training.engine.layout)
    portion = replace(training, engine=engine).alone(0, one, round=4)
    return portion.parameters[0], None if portion.kept is None else portion.kept[0]


def check_same(training, members, name="stacked"):
    for one, (sent, kept, problem) in zip(members, together(training, members), strict=True):
        expected, expected_kept = alone(training, model_of(name), one)
        assert problem is None
        torch.testing.assert_close(sent, expected, rtol=1e-5, atol=1e-6)
        assert (kept is None) == (expected_kept is None)
        if kept is not None:
            torch.testing.assert_close(kept, expected_kept, rtol=1e-4, atol=1e-5)


@pytest.fixture
def stacked(monkeypatch):
    """Numbers of clients in each stack."""
    seen, clip = [], Stack.clip
    monkeypatch.setattr(Stack, "clip", lambda self, *given: seen.append(len(given[2])) or clip(self, *given))
    return seen


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:3], ids=repr)
def test_each_client_ends_where_it_would_end_alone(optimizer, stacked):
    """Catches: gradients that are clipped, too."""
    check_same(cohort(model_of("stacked"), optimizer, proximal_mu=0.1), trainees())
    assert max(stacked) == 5  # those that take three steps


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("ditto", "scaffold") else pytest.mark.exhaustive)
        for name in sorted(ALGORITHMS.keys() - {"fedbn"})  # for which a model needs a normalisation
    ],
)
@pytest.mark.parametrize(
    "before", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["first round", "later"]
)
def test_whatever_the_algorithm_keeps(name, before, stacked):
    algorithm = ALGORITHMS[name]()
    own = torch.linspace(0.2, -0.2, 124) if before and algorithm.keeps else None
    control = CONTROL if before and algorithm.server else None
    training = cohort(model_of("stacked"), algorithm=algorithm, control=control)
    check_same(training, trainees(own=own))
    assert stacked


def test_clients_that_are_not_stacked_end_at_the_same_bits(stacked):
    training = cohort(model_of("one by one"))
    for one, (sent, _, problem) in zip(trainees(), together(training, trainees()), strict=True):
        assert torch.equal(sent, alone(training, model_of("one by one"), one)[0]) and problem is None
    assert not stacked


def test_clients_that_train_together_see_the_views_that_each_sees_alone():
    dimmed = Augmentation(lambda records, chances: records * (0.5 + chances), draws=1)
    views = Views(dimmed, 3, torch.empty(0, 5))
    training = cohort(model_of("stacked"), views=views)
    found = together(training, trainees())
    for one, (sent, *_) in zip(trainees(), found, strict=True):
        assert torch.equal(sent, alone(training, model_of("stacked"), one)[0])
    plain = together(cohort(model_of("stacked")), trainees())
    assert not torch.equal(found[0][0], plain[0][0])


def test_who_else_trains_changes_no_bit_and_the_starting_point_stays():
    """A run has the same bits with any number of workers."""
    model, some = model_of("stacked"), [4, 1, 7]
    before = flat_parameters(model)
    whole = together(cohort(model, Adam(0.05)), trainees())
    assert torch.equal(flat_parameters(model), before)
    fewer = together(cohort(model, Adam(0.05)), [trainees()[place] for place in some])
    for place, (sent, *_) in zip(some, fewer, strict=True):
        assert torch.equal(sent, whole[place][0])


def spoiled(value, place=3):
    """The clients, of whom one has a record that cannot be trained on, or hardly."""
    members = trainees()
    inputs, targets = members[place].shard.inputs, members[place].shard.targets
    if value is None:
        targets[0] = 9  # of four classes
    else:
        inputs[0] = value
    return members


@pytest.mark.parametrize(
    ("value", "algorithm"), [(torch.nan, FEDAVG), (torch.inf, ALGORITHMS["local"]()), (1e30, FEDAVG), (None, FEDAVG)]
)
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
