"""What a ClientApp does on a data owner's host, where it trusts no server."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from fedprivacy.dpsgd import DPSGD
from fedprivacy.events import NeighbouringRelation
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.flower.records import ENROL, ENROLMENT, GRANT, RECEIPT, REFUSAL, Refusal, RefusalCode
from fedprivacy.ledger import Ledger
from tests.flower.blobs import A_GRANT, Blobs, plan_of


class Renamed(Blobs):
    """The same records under another word."""

    dataset = "blobs-v2"


@pytest.fixture(autouse=True)
def identity():
    """Flower's messages read the identity of the process, which a grid sets."""
    InProcessGrid(private_client(), 1, {})


@pytest.fixture
def node(tmp_path):
    return {"folder": str(tmp_path), "epsilon": 3.0, "delta": 1e-3, "client-id": "hospital"}


def send(message_type, content, node, *, task=None, seed=None):
    task = task or Blobs()
    config = plan_of(task, seed=seed).config
    context = Context(run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={})
    return private_client(task, config)(Message(content, 7, message_type), context)


def grant_message(round=1, steps=2, noise_multiplier=2.0, run_id="run", **changed):
    asked = {"run_id": run_id, "round": round, "steps": steps, "noise_multiplier": noise_multiplier}
    grant = replace(A_GRANT, **asked, clipping_norm=1.0, expected_batch_size=15.0, learning_rate=0.5)
    record = ConfigRecord({**grant.to_record(), **changed})
    return RecordDict({GRANT: record})


def arrays_of(task):
    from flwr.app import Array

    return ArrayRecord({n: Array(p.detach().numpy()) for n, p in task.model().named_parameters()})


def train(node, **kwargs):
    task, seed = kwargs.pop("task", Blobs()), kwargs.pop("seed", None)
    content = grant_message(**kwargs)
    content["arrays"] = arrays_of(task)
    return send(MessageType.TRAIN, content, node, task=task, seed=seed)


def code(reply):
    return Refusal.from_record(reply.content[REFUSAL]).code


def spent(node):
    accounts = Ledger(f"sqlite:///{node['folder']}/odometer.db").accounts(["this shard"])
    return sum(accounts["this shard"].history.values()) if accounts else 0


def test_it_enrols_and_trains_within_its_own_budget(node):
    assert ENROLMENT in send(ENROL, RecordDict(), node).content
    reply = train(node)
    assert RECEIPT in reply.content
    assert spent(node) == 2


def test_its_odometer_refuses_when_its_own_budget_is_spent_whatever_the_server_grants(node):
    replies = [train(node, round=r, steps=10) for r in range(1, 30)]
    refused = [REFUSAL in reply.content for reply in replies]
    assert any(refused) and not refused[0]
    assert refused == sorted(refused)
    assert code(replies[-1]) is RefusalCode.BUDGET_EXHAUSTED
    from fedprivacy.accounting import pld
    from fedprivacy.events import PoissonSampledGaussian

    event = PoissonSampledGaussian(0.5, 2.0, NeighbouringRelation.ZERO_OUT)
    assert pld.epsilon({event: spent(node)}, 1e-3) <= 3.0
    assert code(train(node, round=1, steps=10, run_id="another run")) is RefusalCode.BUDGET_EXHAUSTED


def test_a_replayed_grant_is_not_trained_again(node):
    assert RECEIPT in train(node).content
    assert code(train(node)) is RefusalCode.CLIENT_FAILED
    assert spent(node) == 2


def test_noise_that_a_server_changes_mid_way_is_refused(node):
    assert RECEIPT in train(node).content
    assert REFUSAL in train(node, round=2, noise_multiplier=0.1).content
    assert spent(node) == 2


def test_a_seed_in_a_deployment_is_refused(node):
    assert code(train(node, seed=1)) is RefusalCode.SEED_IN_DEPLOYMENT
    assert spent(node) == 0


@pytest.mark.parametrize("missing", ["folder", "epsilon", "delta"])
def test_a_deployment_without_its_own_budget_is_refused(node, missing):
    del node[missing]
    assert code(train(node)) is RefusalCode.NO_ODOMETER


def test_a_partition_id_alone_does_not_make_a_simulation(node):
    """A server cannot talk a deployed client into seeded noise: nothing but the client's own process decides."""
    assert code(train(node | {"partition-id": 0, "num-partitions": 1}, seed=1)) is RefusalCode.SEED_IN_DEPLOYMENT


def test_a_malformed_grant_is_refused_before_anything_is_charged(node):
    assert code(train(node, noise_multiplier=2.0, steps_more=1)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0


def test_the_charge_comes_before_the_training_and_no_text_crosses(node, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("patient 4711 has no label")

    monkeypatch.setattr(DPSGD, "train", fail)
    reply = train(node)
    assert code(reply) is RefusalCode.CLIENT_FAILED
    assert spent(node) == 2
    assert "4711" not in repr(reply)


def test_a_task_that_cannot_work_fails_before_anything_is_charged(node):
    class Averaging(Blobs):
        def loss(self, outputs, targets):
            return super().loss(outputs, targets).mean()

    assert code(train(node, task=Averaging())) is RefusalCode.CLIENT_FAILED
    assert spent(node) == 0


def test_one_record_cannot_make_the_client_fail(node):
    """A label that the loss refuses would show its presence; the record contributes nothing instead."""

    class Mislabelled(Blobs):
        def shard(self, source):
            shard = super().shard(source)
            shard.targets[3] = 7
            return shard

    assert all(RECEIPT in train(node, round=r, steps=1, task=Mislabelled()).content for r in range(1, 9))


def test_another_word_for_the_same_records_opens_no_second_account(node):
    assert RECEIPT in train(node, round=1, steps=8).content
    assert code(train(node, round=2, steps=8, task=Renamed())) is RefusalCode.BUDGET_EXHAUSTED


def test_an_odometer_in_memory_is_refused(node):
    for url in ("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"):
        assert code(train(node | {"odometer": url})) is RefusalCode.CLIENT_FAILED


@pytest.mark.parametrize("changed", [{"clipping_norm": 1e-30}, {"learning_rate": float("inf")}])
def test_settings_that_would_void_the_clipping_are_refused_before_anything_is_charged(node, changed):
    assert code(train(node, **changed)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0


def test_two_deployed_clients_never_share_noise(node, tmp_path):
    def weights(folder):
        folder.mkdir()
        reply = train(node | {"folder": str(folder)})
        return np.concatenate([a.numpy().ravel() for a in reply.content["arrays"].values()])

    assert not np.array_equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
