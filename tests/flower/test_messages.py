"""Records on the wire are strict: whatever is not exactly a grant is no grant."""

import dataclasses
import json
import math

import pytest
from flwr.app import ConfigRecord

from fedprivacy.flower.wire.histories import claims_of, claims_text, history_of, history_text
from fedprivacy.flower.wire.messages import Enrolment, MessageError, Refusal, RefusalCode
from fedprivacy.values.events import UNNAMED
from tests.flower.blobs import A_GRANT, A_RECEIPT


@pytest.mark.parametrize(
    "record", [A_GRANT, A_RECEIPT, Enrolment("client-0", 7, 10, ""), Refusal(RefusalCode.CLIENT_FAILED)]
)
def test_records_survive_the_wire(record):
    assert type(record).from_record(record.to_record()) == record


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (Enrolment("a", 7, 3, ""), "shard_size", -5),  # it would become a weight
        *((A_RECEIPT, "clipping_norm", norm) for norm in (0.0, -1.0, 1e-30, 1e7, math.inf, math.nan)),
    ],
)
def test_a_number_that_cannot_be_is_refused(record, field, value):
    with pytest.raises(MessageError, match=f"{field} is"):
        type(record).from_record(ConfigRecord({**record.to_record(), field: value}))


def test_a_receipt_matches_its_grant_wherever_the_clipping_norm_has_arrived_and_no_other():
    assert A_RECEIPT.matches(A_GRANT) and dataclasses.replace(A_RECEIPT, clipping_norm=0.7).matches(A_GRANT)
    for changed in ({"steps": 1}, {"client_id": "client-1"}):
        assert not dataclasses.replace(A_RECEIPT, **changed).matches(A_GRANT)


def test_a_signature_covers_every_other_field():
    for name, value in {"steps": 3, "clipping_norm": 0.5, "client_id": "x", "charged": "[]", "attempt": 2}.items():
        assert dataclasses.replace(A_GRANT, **{name: value}).signed_bytes() != A_GRANT.signed_bytes()
    assert dataclasses.replace(A_GRANT, signature="ab").signed_bytes() == A_GRANT.signed_bytes()


def test_histories_survive_the_wire():
    claims = {("run", A_GRANT.event): 4, ("other", dataclasses.replace(A_GRANT.event, noise_multiplier=2.0)): 9}
    claims |= {(UNNAMED, A_GRANT.event): 5}
    assert claims_of(claims_text(claims)) == claims
    assert history_of(history_text({A_GRANT.event: 7})) == {A_GRANT.event: 7}
    assert claims_of("") == history_of("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{}",
        "[7]",
        "[[]]",
        '[["run", 0.5, 1.0, "zero-out", -1]]',
        '[["run", 0.5, 1.0, "zero-out", true]]',
        '[["run", 0.5, 1.0, "zero-out", 99999999999999999999]]',
        '[["run", 0.5, "1.0", "zero-out", 1]]',
        '[["run", 0.5, 1.0, "nothing", 1]]',
        '[["run", 0.5, Infinity, "zero-out", 1]]',
        '[[7, 0.5, 1.0, "zero-out", 1]]',
        str([["run", 0.5, 1.0, "zero-out", 1]] * 10_001).replace("'", '"'),
        "[" * 200_000,
        f'[["run", {10**400}, 1.0, "zero-out", 1]]',
        '[["run", 0.5, 1.0, "zero-out", 2147483648]]',
        '[["\\n", 0.5, 1.0, "zero-out", 1]]',
        '[["\\ud800", 0.5, 1.0, "zero-out", 1]]',
        '[["a\\u0000b", 0.5, 1.0, "zero-out", 1]]',
        f'[["{"x" * 129}", 0.5, 1.0, "zero-out", 1]]',
        json.dumps([["run", 0.5, 1.0 + i, "zero-out", 1] for i in range(501)]),
        " " * 5_000_000,
    ],
    ids=range(21),
)
def test_a_history_that_is_none_is_refused(text):
    with pytest.raises(MessageError, match="history"):
        claims_of(text)
