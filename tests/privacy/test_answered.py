"""All that leaves a client depends on its records only where a grant was charged, and the server's logs hold no value.

On real hosts: `tests/deploy/test_wheel.py`.
"""

import json

import torch
from flwr.app import ConfigRecord, MessageType, RecordDict

from fedprivacy._support.logs import LogFormat, LogSettings
from fedprivacy.flower.wire.messages import ENROL, GRANT, RECEIPT
from fedprivacy.training.dpsgd import DPSGD
from tests.flower.blobs import BLOBS, plan_of
from tests.flower.runs import run
from tests.privacy.asking import USUAL, Canaries, Client, arrays_of

ONE, OTHER = Canaries(torch.ones(3, 2)), Canaries(-4.0 * torch.ones(7, 2))
"""Shards that differ in every record, and in how many there are; their sizes are private."""

ASKED = [MessageType.EVALUATE, MessageType.QUERY, *(f"{kind}.more" for kind in ("evaluate", "query", "train")), ENROL]


def answer(task, message_type):
    """All that comes back from a client with its model, a grant and a strategy's settings: bytes, or the error."""
    settings = ConfigRecord({"server-round": 1})
    content = RecordDict({"arrays": arrays_of(task), GRANT: USUAL.to_record(), "config": settings})
    try:
        reply = Client(task, seed=5).send(message_type, content)
    except Exception as error:
        return type(error), str(error)
    if reply.has_error():
        return reply.error.code, reply.error.reason
    arrays = {n: a.numpy().tobytes() for record in reply.content.array_records.values() for n, a in record.items()}
    facts = {n: dict(record) for n, record in reply.content.config_records.items()}
    return arrays, facts, {n: dict(record) for n, record in reply.content.metric_records.items()}


def test_only_a_grant_is_answered_with_anything_that_depends_on_records():
    """Catches: evaluation, or another question, that a client answers from its records without noise or charge."""
    for message_type in ASKED:
        assert answer(ONE, message_type) == answer(OTHER, message_type)
    assert answer(ONE, MessageType.TRAIN) != answer(OTHER, MessageType.TRAIN)


def test_an_update_s_form_is_that_of_the_model_whatever_the_records():
    """Catches: a shape, a type or a name in a reply that depends on how many records there are.

    Sums of more than 1,024 records were float64 once.
    """
    forms = []
    for count in (0, 1, 128, 129, 1024, 1025):
        task = Canaries(torch.ones(count, 2))
        reply = Client(task).send(MessageType.TRAIN, RecordDict({"arrays": arrays_of(task), GRANT: USUAL.to_record()}))
        receipt = [(name, type(value)) for name, value in reply.content[RECEIPT].items()]
        forms.append((list(reply.content), shapes(reply.content["arrays"]), receipt))
    assert all(form == forms[0] for form in forms)
    assert forms[0][:2] == (["arrays", RECEIPT], shapes(arrays_of(ONE)))


def shapes(arrays):
    """Names in their order, types, shapes and bytes."""
    return [(n, a.dtype, tuple(a.shape), a.stype, len(a.data)) for n, a in arrays.items()]


PRIVATE = "the age 4711.25 is no number"


def test_a_client_s_failure_is_in_its_own_log_and_its_values_are_not_in_the_server_s(tmp_path, capfd, monkeypatch):
    train = DPSGD.train

    def failing(self, engine, shard, **given):
        if len(shard) == 31:
            raise ValueError(PRIVATE)
        return train(self, engine, shard, **given)

    monkeypatch.setattr(DPSGD, "train", failing)
    plan = plan_of(BLOBS, epsilon=3.0, rounds=2, ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    LogSettings(LogFormat.JSON).begin()
    done = run(plan)
    assert [record.failures for record in done.records] == [{"client-1": "client-failed"}] * 2
    lines = capfd.readouterr().err.splitlines()
    own = [line for line in lines if json.loads(line)["logger"] == "fedprivacy.client"]
    others = [line for line in lines if line not in own]
    failures = [line for line in own if "This client sends no update (client-failed)." in line]
    assert len(failures) == 2 and all(PRIVATE in line for line in failures)
    (finished,) = [line for line in others if "Round 2: accuracy" in line]
    for line in (finished, failures[1]):
        assert {"run": done.run_id, "round": 2}.items() <= json.loads(line).items()
    assert any("No update in round 2 from client-1 (client-failed)." in line for line in others)
    assert not any("4711" in line for line in others)
