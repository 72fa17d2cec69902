"""Records on the wire are strict: whatever is not exactly a grant is no grant."""

import dataclasses
import json
import math
from contextlib import nullcontext

import pytest
from flwr.app import ConfigRecord

from fedprivacy.flower.wire.messages import (
    Enrolment,
    EnrolmentRequest,
    MessageError,
    Receipt,
    Refusal,
    RefusalCode,
    SignedMessage,
    SpendingMessage,
)
from fedprivacy.flower.wire.payloads import claims_of, claims_text, history_of, history_text
from fedprivacy.mechanisms.lattice_noise import LARGEST_SUM
from fedprivacy.questions.counts import Count
from fedprivacy.values.events import UNNAMED, NeighbouringRelation
from tests.flower.asked import a_question
from tests.flower.blobs import A_GRANT, A_RECEIPT

RECORDS = [
    A_GRANT,
    A_RECEIPT,
    a_question(Count()),
    EnrolmentRequest("1", "ab" * 32),
    Enrolment("client-0", 7, 10, ""),
    Refusal(RefusalCode.CLIENT_FAILED),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_survive_the_wire(record):
    assert type(record).from_record(record.to_record()) == record


OF_EACH_TYPE = (0, 1, 0.0, 1.0, False, True, "1", b"1", [1])


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_field_takes_values_of_its_own_type_alone(record):
    """True is a whole number for Python, and 1 a real one: who sends another type means something else by it."""
    whole = record.to_record()
    for field, own in whole.items():
        for value in OF_EACH_TYPE:
            if type(value) is not type(own):
                with pytest.raises(MessageError):
                    type(record).from_record(ConfigRecord({**whole, field: value}))


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


@pytest.mark.parametrize("value", [LARGEST_SUM, 2 * LARGEST_SUM, math.inf, math.nan])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_noisy_sum_beyond_any_is_refused_on_both_sides(value, sign):
    record = ConfigRecord({**A_RECEIPT.to_record(), "evaluation": json.dumps([1.0, sign * value])})
    with pytest.raises(MessageError, match="evaluation must be") if value != LARGEST_SUM else nullcontext():
        assert Receipt.from_record(record).noisy_sums == (1.0, sign * value)


def test_a_receipt_matches_its_grant_wherever_the_clipping_norm_has_arrived_and_no_other():
    assert A_RECEIPT.matches(A_GRANT) and dataclasses.replace(A_RECEIPT, clipping_norm=0.7).matches(A_GRANT)
    stated = [field.name for field in dataclasses.fields(SpendingMessage) if field.name != "clipping_norm"]
    assert len(stated) == 9
    for name in stated:
        assert not another(A_RECEIPT, name).matches(A_GRANT)


def another(record, field):
    """The same record but for one field."""
    before = getattr(record, field)
    other = {bool: not before, str: "x", NeighbouringRelation: NeighbouringRelation.ADD_OR_REMOVE_ONE}
    made = object.__new__(type(record))  # an impossible one has bytes, too
    for each in dataclasses.fields(record):
        object.__setattr__(made, each.name, getattr(record, each.name))
    object.__setattr__(made, field, other[type(before)] if type(before) in other else before + 1)
    assert getattr(made, field) != before
    return made


@pytest.mark.parametrize(
    "record", [each for each in RECORDS if isinstance(each, SignedMessage)], ids=lambda record: type(record).__name__
)
def test_a_signature_covers_every_other_field_and_is_of_one_kind_of_record(record):
    for name in (field.name for field in dataclasses.fields(record)):
        assert (another(record, name).signed_bytes() == record.signed_bytes()) == (name == "signature")
    purposes = [each.purpose for each in RECORDS if isinstance(each, SignedMessage)]
    assert purposes.count(record.purpose) == 1


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
        "[7]",
        '[["run", 0.5, 1.0, "zero-out", -1]]',
        '[["run", 0.5, 1.0, "zero-out", true]]',
        '[["run", 0.5, 1.0, "zero-out", 99999999999999999999]]',
        '[["run", 0.5, 1.0, "nothing", 1]]',
        '[["run", 0.5, Infinity, "zero-out", 1]]',
        '[[7, 0.5, 1.0, "zero-out", 1]]',
        str([["run", 0.5, 1.0, "zero-out", 1]] * 10_001).replace("'", '"'),
        "[" * 200_000,
        f'[["run", {10**400}, 1.0, "zero-out", 1]]',
        '[["run", 0.5, 1.0, "zero-out", 2147483648]]',
        '[["\\n", 0.5, 1.0, "zero-out", 1]]',
        '[["a\\u0000b", 0.5, 1.0, "zero-out", 1]]',
        f'[["{"x" * 129}", 0.5, 1.0, "zero-out", 1]]',
        json.dumps([["run", 0.5, 1.0 + i, "zero-out", 1] for i in range(501)]),
        " " * 5_000_000,
    ],
    ids=range(17),
)
def test_a_history_that_is_none_is_refused(text):
    with pytest.raises(MessageError, match="history"):
        claims_of(text)
