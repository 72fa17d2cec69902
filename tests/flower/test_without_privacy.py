"""A baseline that trains together: nobody is charged, a client that diverges is left out, and privacy is no part of it.

Its runs are those of messages: tests/flower/test_every_way.py.
"""

from dataclasses import replace

import pytest
import torch

import fedprivacy as fp
from fedprivacy.flower import InProcessGrid
from fedprivacy.flower.simulated import engine
from fedprivacy.flower.simulated.populations import Population
from fedprivacy.flower.simulated.without_privacy import (
    NullBooks,
    NullMechanism,
    PlainCohort,
    plain_client,
    train_without_privacy,
)
from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.stacked import Stack
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.training.algorithms import ALGORITHMS
from fedprivacy.training.optimizers import SGD
from tests.flower.blobs import Blobs, plan_of
from tests.flower.runs import model_of, run
from tests.gradients.oracle import cross_entropy
from tests.training import cohorts


class Infinite(Blobs):
    """A client has a record that is not finite, and another one a label that there is not."""

    def shard(self, source):
        shard = super().shard(source)
        if source.partition_id == 1:
            shard.inputs[:] = torch.inf
        if source.partition_id == 3:
            shard.targets[:] = 7
        return shard


def both(task, **settings):
    """The same run by messages and together."""
    plan = plan_of(task, privacy=False, **settings)
    client = plain_client(plan.task, plan.config)
    population = Population(plan.task, plan.config, train_without_privacy)
    return [run(plan, client=client, accounts=NullBooks, population=each) for each in (None, population)]


def test_clients_whose_records_cannot_be_trained_on_are_left_out_and_not_counted():
    """Catches: a stack that leaves out the records instead, as it must in private training."""
    messages, together = both(Infinite(), clients=5, sampling_rate=1.0)
    assert (model_of(messages) - model_of(together)).abs().max() < 2e-6
    assert [record.participants for record in messages.records] == [record.participants for record in together.records]
    last = together.records[-1]
    assert last.failures.keys() <= {"client-1", "client-3"} and last.failures
    assert last.spent["client-1"].rounds == last.spent["client-3"].rounds == 0


def test_a_simulation_of_many_clients_sends_no_message_and_charges_nothing(monkeypatch, tmp_path, undrawn):
    monkeypatch.setattr(InProcessGrid, "push_messages", lambda *_: pytest.fail("a message was sent"))
    run = fp.simulate(Blobs(), clients=engine.POPULATION, rounds=2, privacy=False, seed=0, out="run", progress=False)
    assert run.metrics["accuracy"] > 0.8
    assert {client["rounds"] for client in run.clients} == {2}
    assert {client["epsilon"] for client in run.clients} == {float("inf")}
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_a_private_run_cannot_be_given_its_training(tmp_path):
    """It would be charged for noise that nobody adds."""
    plan = plan_of(Blobs(), clients=3, ledger="sqlite:///ledger.db")
    with pytest.raises(ConfigError, match="privacy is on"):
        run(plan, population=Population(plan.task, plan.config, train_without_privacy))


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
    training = cohort(cohorts.model_of("stacked"), algorithm=algorithm, control=control)
    for one, (sent, kept, problem) in zip(trainees(own=own), together(training, trainees(own=own)), strict=True):
        expected, expected_kept = alone(training, cohorts.model_of("stacked"), one)
        assert problem is None
        torch.testing.assert_close(sent, expected, rtol=1e-5, atol=1e-6)
        assert (kept is None) == (expected_kept is None)
        if kept is not None:
            torch.testing.assert_close(kept, expected_kept, rtol=1e-4, atol=1e-5)
    assert max(stacked) == 5  # those that take three steps
