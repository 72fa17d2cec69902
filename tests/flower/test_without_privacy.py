"""A baseline that trains together: nobody is charged, a client that diverges is left out, and privacy is no part of it.

Its runs are those of messages: tests/flower/test_every_way.py.
"""

import pytest
import torch

import fedprivacy as fp
from fedprivacy.flower import InProcessGrid
from fedprivacy.flower.simulated import engine
from fedprivacy.flower.simulated.populations import Population
from fedprivacy.flower.simulated.without_privacy import (
    NullBooks,
    plain_client,
    train_without_privacy,
)
from fedprivacy.runs.settings.configuration import ConfigError
from tests.flower.blobs import Blobs, plan_of
from tests.flower.runs import model_of, run


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
