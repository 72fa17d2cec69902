"""What a ClientApp does on a data owner's host, where it trusts no server."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedprivacy as fp
from fedprivacy._support.signing import server_public_key
from fedprivacy.accounting import MechanismChanged, pld
from fedprivacy.audit.our_client.audited_client import Audited
from fedprivacy.flower.client import local
from fedprivacy.flower.client.node import Refused
from fedprivacy.flower.wire.messages import RECEIPT, REFUSAL, MessageError, RefusalCode
from fedprivacy.flower.wire.payloads import history_text
from fedprivacy.guard import (
    AlreadyChargedError,
    BudgetExhaustedError,
    Guard,
    InvalidGrantError,
    LogError,
    NoRoomError,
    QuestionsExhaustedError,
)
from fedprivacy.guard.errors import GuardError
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.tasks import Shard
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import NeighbouringRelation
from tests.flower.asked import STRANGER, a_grant, code, enrol, spent, train
from tests.flower.blobs import Blobs, Chain, DeepBlobs, plan_of


def weights(reply):
    return np.concatenate([a.numpy().ravel() for a in reply.content["arrays"].values()])


class Renamed(Blobs):
    dataset = "another word for the same records"


def test_its_guard_refuses_when_its_own_budget_is_spent_whatever_the_server_grants(node):
    replies = [train(node, round=r, steps=10) for r in range(1, 30)]
    refused = [REFUSAL in reply.content for reply in replies]
    assert any(refused) and not refused[0]
    assert refused == sorted(refused)
    assert code(replies[-1]) is RefusalCode.BUDGET_EXHAUSTED
    assert pld.epsilon({a_grant().event: spent(node)}, 1e-3) <= 3.0
    assert code(train(node, round=1, steps=10, run_id="another run")) is RefusalCode.BUDGET_EXHAUSTED
    assert code(train(node, round=30, steps=10, task=Renamed())) is RefusalCode.BUDGET_EXHAUSTED


def test_a_replayed_grant_is_answered_with_what_was_sealed_and_not_trained_again(node, monkeypatch):
    first = train(node)
    monkeypatch.setattr(DPSGD, "train", lambda *_, **__: pytest.fail("trained again"))
    again = train(node)
    assert np.array_equal(weights(first), weights(again))
    assert dict(first.content[RECEIPT]) == dict(again.content[RECEIPT])
    assert spent(node) == 2


def test_the_charge_comes_before_the_training_and_no_text_crosses_nor_is_a_lost_update_trained_again(node, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("patient 4711 has no label")

    with monkeypatch.context() as broken:
        broken.setattr(DPSGD, "train", fail)
        reply = train(node)
    assert code(reply) is RefusalCode.CLIENT_FAILED
    assert "4711" not in repr(reply.content) and "patient" not in repr(reply)  # the time may hold 4711
    assert code(train(node)) is RefusalCode.ALREADY_CHARGED
    assert spent(node) == 2
    assert RECEIPT in train(node, attempt=2).content
    assert spent(node) == 4


@pytest.mark.parametrize(
    "forged",
    [
        {"signature": ""},
        {"signature": "zz"},
        {"steps": 3},
        {"server_key": ""},
        {"server_key": "ab" * 32},
        {"server_key": server_public_key(STRANGER)},
    ],
    ids=str,
)
def test_a_grant_that_its_server_did_not_sign_is_refused_before_anything_is_charged(node, forged):
    assert code(train(node, forged=forged)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0


def test_a_run_stays_with_the_key_that_opened_it_though_the_data_owner_trusts_another_by_now(node):
    train(node)
    node["server-key"] = server_public_key(STRANGER)
    assert code(train(node, signer=STRANGER)) is RefusalCode.GRANT_INVALID
    assert code(train(node, signer=STRANGER, round=2)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 2
    assert RECEIPT in train(node, signer=STRANGER, run_id="its own").content


def test_a_server_cannot_change_the_noise_or_ruin_the_book_with_an_event_that_the_filter_does_not_compose(node):
    node |= {"filter": "fixed-mechanism"}
    assert RECEIPT in train(node).content
    assert code(train(node, round=2, noise_multiplier=1.0)) is RefusalCode.GRANT_INVALID
    others = [
        replace(a_grant().event, relation=NeighbouringRelation.ADD_OR_REMOVE_ONE),
        replace(a_grant().event, noise_multiplier=9.0),
    ]
    for round, other in enumerate(others, start=3):
        assert REFUSAL in train(node, round=round, charged=history_text({other: 5})).content
    assert spent(node) == 2
    assert RECEIPT in train(node, round=9).content


def test_a_guard_of_an_older_form_is_not_forgotten(node):
    """Counts of `odometer.log` or `odometer.db` must not begin anew as `guard.log`."""
    folder = Path(node["folder"])
    assert RECEIPT in train(node).content
    (folder / "guard.log").rename(folder / "odometer.log")
    assert code(train(node, round=2)) is RefusalCode.GUARD_UNUSABLE
    assert not (folder / "guard.log").exists()
    again = node | {"guard": str(folder / "odometer.log")}
    assert RECEIPT in train(again, round=2).content
    assert sum(Guard(folder / "odometer.log", PrivacyBudget(3.0, 1e-3)).history().values()) == 4
    (folder / "odometer.log").rename(folder / "odometer.db")
    assert code(train(node)) is RefusalCode.GUARD_UNUSABLE


def test_a_seed_in_a_deployment_is_refused(node):
    assert code(train(node, seed=1)) is RefusalCode.SEED_IN_DEPLOYMENT
    assert spent(node) == 0


def test_a_task_that_cannot_work_fails_before_anything_is_charged(node):
    class Averaging(Blobs):
        def loss(self, outputs, targets):
            return super().loss(outputs, targets).mean()

    assert code(train(node, task=Averaging())) is RefusalCode.CLIENT_FAILED
    assert spent(node) == 0


def test_two_deployed_clients_never_share_noise(node, tmp_path):
    def update(folder):
        folder.mkdir()
        return weights(train(node | {"folder": str(folder)}))

    assert not np.array_equal(update(tmp_path / "a"), update(tmp_path / "b"))


UNREADABLE = [
    ValueError("patient P-4711 has no age"),
    MessageError("patient P-4711"),
    AlreadyChargedError("patient P-4711"),
    Refused(RefusalCode.NO_KEY, "patient P-4711"),
    Shard(torch.zeros(4711, 2), torch.zeros(4711, dtype=torch.int64)).inputs,
    None,
]


@pytest.mark.parametrize("fault", UNREADABLE, ids=lambda fault: type(fault).__name__)
def test_a_shard_that_cannot_be_read_is_one_constant_code_before_any_charge(node, fault):
    """A task whose `shard` fails on a record breaks its contract; what failed, and how, still stays on this host."""

    class Unreadable(Blobs):
        def shard(self, source):
            if isinstance(fault, Exception):
                raise fault
            return fault

    for reply in (enrol(node, task=Unreadable()), train(node, task=Unreadable())):
        assert code(reply) is RefusalCode.CLIENT_FAILED
        assert "4711" not in repr(reply.content) and "P-4711" not in repr(reply)  # the time may hold 4711
    assert spent(node) == 0


class Wandering(Blobs):
    """Blobs, of which the mean is taken off: that shows the others."""

    augmentation = fp.Augmentation(lambda points, chances: points - points.mean(0), draws=1)


def test_views_that_a_task_has_not_or_that_show_other_records_are_refused_before_anything_is_spent(node):
    for task in (Blobs(), Wandering()):
        assert code(train(node, task=task, augmentation_multiplicity=2)) is RefusalCode.GRANT_INVALID
    assert spent(node) == 0
    with pytest.raises(ConfigError, match="augmentation-multiplicity is set, and task blobs has no augmentation"):
        plan_of(Blobs(), augmentation_multiplicity=2)
    with pytest.raises(ConfigError, match="task blobs: a view of a record is another one without the others"):
        fp.simulate(Wandering(), clients=2, augmentation_multiplicity=2, out="out", progress=False)


def test_as_many_views_as_there_may_be_are_taken_and_count_among_the_steps_that_a_client_takes_at_most(node):
    """Else a server would have a host work 256 times as long as its owner allows."""
    node, task = node | {"epsilon": 50.0}, Chain()
    assert RECEIPT in train(node, task=task, augmentation_multiplicity=256).content
    node["most-steps"] = 8
    for steps, views in ((9, 0), (3, 3), (2, 8)):
        refused = train(node, round=2, task=task, steps=steps, augmentation_multiplicity=views)
        assert (code(refused), spent(node)) == (RefusalCode.GRANT_INVALID, 2)
    for number, (steps, views) in enumerate(((8, 0), (8, 1), (2, 4)), start=2):
        assert RECEIPT in train(node, round=number, task=task, steps=steps, augmentation_multiplicity=views).content


def test_activations_have_the_type_that_the_data_owner_or_the_audited_run_chose(node, monkeypatch):
    types = []

    class Watched(local.GradientEngine):
        def __init__(self, *args, autocast, **options):
            types.append(autocast)
            super().__init__(*args, autocast=autocast, **options)

    monkeypatch.setattr(local, "GradientEngine", Watched)
    assert RECEIPT in train(node, task=DeepBlobs()).content
    assert RECEIPT in train(node | {"autocast": "bfloat16"}, round=2, task=DeepBlobs()).content
    plan = plan_of(DeepBlobs(), autocast="bfloat16", noise_multiplier=1.0)
    audited, parameters = Audited.of(plan), DeepBlobs().model().state_dict()
    grant = audited.client.usual_grant()
    audited.client_of(audited.task, audited.shard).ask(grant, {name: each.numpy() for name, each in parameters.items()})
    assert types == [None, torch.bfloat16, torch.bfloat16]


MEANS = {
    BudgetExhaustedError: RefusalCode.BUDGET_EXHAUSTED,
    QuestionsExhaustedError: RefusalCode.QUESTIONS_EXHAUSTED,
    AlreadyChargedError: RefusalCode.ALREADY_CHARGED,
    InvalidGrantError: RefusalCode.GRANT_INVALID,
    MechanismChanged: RefusalCode.GRANT_INVALID,
    MessageError: RefusalCode.GRANT_INVALID,
    NoRoomError: RefusalCode.NO_ROOM,
    LogError: RefusalCode.GUARD_UNUSABLE,
    Exception: RefusalCode.CLIENT_FAILED,
}


def kinds_of(error):
    return {error}.union(*map(kinds_of, error.__subclasses__()))


@pytest.mark.parametrize(
    "kind", sorted(kinds_of(GuardError) | MEANS.keys() | {ValueError, MemoryError}, key=lambda kind: kind.__name__)
)
def test_every_error_is_told_by_its_code_and_no_word_more(node, kind, monkeypatch):
    """Whoever reads a code gives the charge back or not, and asks the client again or not."""
    monkeypatch.setattr(Guard, "charge", lambda *_, **__: (_ for _ in ()).throw(kind.__new__(kind, "a secret")))
    assert code(train(node)) is next(MEANS[base] for base in kind.__mro__ if base in MEANS)
