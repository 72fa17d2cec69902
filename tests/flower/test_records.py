"""Records on the wire are strict: whatever is not exactly a grant is no grant."""

import dataclasses

import pytest
from flwr.app import ConfigRecord

from fedprivacy.flower.records import VERSION, Enrolment, Grant, Receipt, RecordError, Refusal, RefusalCode
from tests.flower.blobs import A_GRANT


@pytest.mark.parametrize(
    "record", [A_GRANT, A_GRANT.receipt(), Enrolment("client-0", 7, 10), Refusal(RefusalCode.CLIENT_FAILED)]
)
def test_records_survive_the_wire(record):
    assert type(record).from_record(record.to_record()) == record


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Grant)] + ["version"])
def test_a_missing_field_is_refused(name):
    record = A_GRANT.to_record()
    del record[name]
    with pytest.raises(RecordError):
        Grant.from_record(record)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", VERSION + 1),
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
        ("weight_decay", -0.1),
        ("weight_decay", float("inf")),
        ("optimizer", "rmsprop"),
        ("earlier_runs", -1),
        ("expected_batch_size", 0.0),
        ("unknown", 1),
    ],
)
def test_a_wrong_value_is_refused(name, value):
    with pytest.raises(RecordError):
        Grant.from_record(ConfigRecord({**A_GRANT.to_record(), name: value}))


def test_a_negative_shard_size_cannot_become_a_weight():
    with pytest.raises(RecordError, match="shard_size is -5"):
        Enrolment.from_record(
            ConfigRecord({"version": VERSION, "client_id": "a", "shard_size": -5, "num_partitions": 3})
        )


def test_the_receipt_states_what_the_grant_allowed():
    receipt = A_GRANT.receipt()
    assert isinstance(receipt, Receipt)
    assert all(getattr(receipt, f.name) == getattr(A_GRANT, f.name) for f in dataclasses.fields(Receipt))
