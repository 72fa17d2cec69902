"""Records on the wire are strict: whatever is not exactly a grant is no grant."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedprivacy.flower.client.release import Released, digest, most_sealed
from fedprivacy.flower.wire.messages import (
    LONGEST_CLIENT_ID,
    Enrolment,
    EnrolmentRequest,
    MessageError,
    Receipt,
    Refusal,
    RefusalCode,
    SignedMessage,
    SpendingMessage,
)
from fedprivacy.flower.wire.payloads import claims_of
from fedprivacy.mechanisms.lattice_noise import LARGEST_SUM
from fedprivacy.questions.counts import Count
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.metrics import MOST_SCORES
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


NO_SUMS = ["x", "{}", "[true]", json.dumps([0.5] * 257), "[[1.0]]", "[1e300, 1e300]", "[" * 100_000]
NO_SUMS += [json.dumps([1.0, sign * value]) for sign in (1, -1) for value in (2 * LARGEST_SUM, math.inf, math.nan)]


def test_an_evaluation_is_a_list_of_finite_sums_that_are_none_too_large():
    for edge in (LARGEST_SUM, -LARGEST_SUM):
        assert replace(A_RECEIPT, evaluation=json.dumps([1.0, edge])).noisy_sums == (1.0, edge)
    for evaluation in NO_SUMS:
        with pytest.raises(MessageError, match=r"evaluation|Expecting"):
            Receipt.from_record(ConfigRecord({**A_RECEIPT.to_record(), "evaluation": evaluation}))


def test_a_receipt_matches_its_grant_wherever_the_clipping_norm_has_arrived_and_no_other():
    assert A_RECEIPT.matches(A_GRANT) and replace(A_RECEIPT, clipping_norm=0.7).matches(A_GRANT)
    stated = [field.name for field in fields(SpendingMessage) if field.name != "clipping_norm"]
    assert len(stated) == 9
    for name in stated:
        assert not another(A_RECEIPT, name).matches(A_GRANT)
    evaluated, asked = replace(A_RECEIPT, evaluation="[1.5, 0.5]"), replace(A_GRANT, local_evaluation=True)
    assert evaluated.matches(asked) and not evaluated.matches(A_GRANT) and not A_RECEIPT.matches(asked)


def another(record, field):
    """The same record but for one field."""
    before = getattr(record, field)
    other = {bool: not before, str: "x", NeighbouringRelation: NeighbouringRelation.ADD_OR_REMOVE_ONE}
    made = object.__new__(type(record))  # an impossible one has bytes, too
    for each in fields(record):
        object.__setattr__(made, each.name, getattr(record, each.name))
    object.__setattr__(made, field, other[type(before)] if type(before) in other else before + 1)
    assert getattr(made, field) != before
    return made


@pytest.mark.parametrize(
    "record", [each for each in RECORDS if isinstance(each, SignedMessage)], ids=lambda record: type(record).__name__
)
def test_a_signature_covers_every_other_field_and_is_of_one_kind_of_record(record):
    for name in (field.name for field in fields(record)):
        assert (another(record, name).signed_bytes() == record.signed_bytes()) == (name == "signature")
    purposes = [each.purpose for each in RECORDS if isinstance(each, SignedMessage)]
    assert purposes.count(record.purpose) == 1


LINE = '["run", 0.5, 1.0, "zero-out", 1]'
NO_HISTORIES = [
    *("x", "[7]", "[" * 200_000, " " * 5_000_000, f"[{', '.join([LINE] * 10_001)}]"),
    *(f"[{LINE.replace('1]', f'{steps}]')}]" for steps in (-1, "true", 2**31, 99999999999999999999)),
    *(f"[{LINE.replace('0.5, 1.0', numbers)}]" for numbers in ("0.5, Infinity", f"{10**400}, 1.0")),
    *(f"[{LINE.replace('zero-out', 'nothing')}]", f"[{LINE.replace('run', 'x' * 129)}]"),
    *(f"[{LINE.replace(chr(34) + 'run' + chr(34), name)}]" for name in ("7", r'"\n"', r'"a\u0000b"')),
    json.dumps([["run", 0.5, 1.0 + i, "zero-out", 1] for i in range(501)]),
]


@pytest.mark.parametrize("text", NO_HISTORIES, ids=range(len(NO_HISTORIES)))
def test_a_history_that_is_none_is_refused(text):
    assert claims_of(f"[{LINE}]") == {("run", PoissonSampledGaussian(0.5, 1.0, NeighbouringRelation.ZERO_OUT)): 1}
    with pytest.raises(MessageError, match="history"):
        claims_of(text)


ARRAYS = {"body": np.arange(6, dtype=np.float32).reshape(2, 3), "head": np.ones(2, dtype=np.float32)}


BODY, HEAD = ARRAYS.values()
OTHERS = {
    "value": {**ARRAYS, "head": np.array([1.0, 1.0 + 2**-23], dtype=np.float32)},
    "shape": {**ARRAYS, "head": HEAD.reshape(2, 1)},
    "shape turned": {**ARRAYS, "body": BODY.reshape(3, 2)},
    "transposed": {**ARRAYS, "body": BODY.T},
    "type": {**ARRAYS, "body": BODY.view(np.int32)},
    "name": {"body": BODY, "tail": HEAD},
    "swapped": {"body": HEAD, "head": BODY},
    "cut elsewhere": {"body": BODY.ravel()[:4], "head": np.append(BODY.ravel()[4:], HEAD)},
    "less": {"body": BODY},
    "empty": {**ARRAYS, "more": np.empty(0, dtype=np.float32)},
}


def test_a_receipt_is_for_one_update_s_values_names_types_and_shapes():
    assert len({digest(arrays) for arrays in (ARRAYS, *OTHERS.values())}) == 1 + len(OTHERS)
    there = dict(reversed(ARRAYS.items())) | {"body": np.asfortranarray(BODY)}
    assert digest(there) == digest(ARRAYS), "the order in which arrays come and lie in memory does not matter"


def test_what_was_sealed_comes_back_whole_and_in_its_order():
    receipt = replace(A_RECEIPT, update=digest(ARRAYS), evaluation="[1.5, -0.25]", signature="ab" * 40)
    arrays = dict(reversed(ARRAYS.items()))
    back = Released.from_bytes(Released(arrays, receipt).to_bytes())
    assert back.receipt == receipt
    assert list(back.arrays) == list(arrays)
    assert digest(back.arrays) == receipt.update


@pytest.mark.parametrize(("name", "most"), [("body.{}.weight", 2**16 + 300 * 256), ('"ä\U0001f3e5\n{}' * 9, 2**20)])
def test_the_room_that_is_held_for_an_update_is_enough_and_hardly_too_large(name, most):
    arrays = {name.format(*[number] * 9): np.ones((1, 2, 1, 3, 1, 4)) for number in range(300)}
    scores = json.dumps([-1.2345678901234567e-300] * (1 + MOST_SCORES))
    receipt = replace(A_RECEIPT, client_id="\U0001f3e5" * LONGEST_CLIENT_ID, evaluation=scores, signature="ab" * 80)
    sealed = len(Released(arrays, receipt).to_bytes())
    assert sealed <= most_sealed(arrays) <= sealed + most
