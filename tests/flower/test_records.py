"""Records on the wire are strict: whatever is not exactly a grant is no grant."""

import dataclasses

import pytest
from flwr.app import ConfigRecord

from fedprivacy.events import NeighbouringRelation
from fedprivacy.flower.records import Enrolment, Grant, Receipt, RecordError, Refusal, RefusalCode

GRANT = Grant(
    run_id="run",
    client_id="client-0",
    round=3,
    steps=2,
    sampling_rate=0.5,
    noise_multiplier=1.5,
    relation=NeighbouringRelation.ZERO_OUT,
    clipping_norm=0.3,
    expected_batch_size=12.5,
    learning_rate=2.0,
    momentum=0.0,
    earlier_runs=0,
)


@pytest.mark.parametrize(
    "record", [GRANT, GRANT.receipt(), Enrolment("client-0", 7, 10), Refusal(RefusalCode.CLIENT_FAILED)]
)
def test_records_survive_the_wire(record):
    assert type(record).from_record(record.to_record()) == record


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Grant)] + ["version"])
def test_a_missing_field_is_refused(name):
    record = GRANT.to_record()
    del record[name]
    with pytest.raises(RecordError):
        Grant.from_record(record)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("steps", 2.0),
        ("steps", True),
        ("steps", 0),
        ("round", 0),
        ("sampling_rate", 0.0),
        ("sampling_rate", 1),
        ("sampling_rate", float("nan")),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", float("inf")),
        ("relation", "replace-one"),
        ("clipping_norm", -1.0),
        ("clipping_norm", 1e-30),
        ("clipping_norm", float("inf")),
        ("learning_rate", float("inf")),
        ("learning_rate", float("nan")),
        ("momentum", 1.0),
        ("earlier_runs", -1),
        ("expected_batch_size", 0.0),
        ("unknown", 1),
    ],
)
def test_a_wrong_value_is_refused(name, value):
    with pytest.raises(RecordError):
        Grant.from_record(ConfigRecord({**GRANT.to_record(), name: value}))


def test_a_negative_shard_size_cannot_become_a_weight():
    with pytest.raises(RecordError, match="shard_size is -5"):
        Enrolment.from_record(ConfigRecord({"version": 1, "client_id": "a", "shard_size": -5, "num_partitions": 3}))


def test_the_receipt_states_what_the_grant_allowed():
    receipt = GRANT.receipt()
    assert isinstance(receipt, Receipt)
    assert all(getattr(receipt, f.name) == getattr(GRANT, f.name) for f in dataclasses.fields(Receipt))
