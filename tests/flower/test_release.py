"""What a client's signature stands for, and what its disk gives back."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedprivacy.flower.client.release import Released, digest, most_sealed
from fedprivacy.flower.wire.messages import LONGEST_CLIENT_ID
from fedprivacy.values.metrics import MOST_SCORES
from tests.flower.blobs import A_RECEIPT

ARRAYS = {"body": np.arange(6, dtype=np.float32).reshape(2, 3), "head": np.ones(2, dtype=np.float32)}


@pytest.mark.parametrize(
    "other",
    [
        {**ARRAYS, "head": np.array([1.0, 1.0 + 2**-23], dtype=np.float32)},
        {**ARRAYS, "head": ARRAYS["head"].reshape(2, 1)},
        {**ARRAYS, "body": ARRAYS["body"].reshape(3, 2)},
        {**ARRAYS, "body": ARRAYS["body"].T},
        {**ARRAYS, "body": ARRAYS["body"].view(np.int32)},
        {"body": ARRAYS["body"], "tail": ARRAYS["head"]},
        {"body": ARRAYS["head"], "head": ARRAYS["body"]},
        {"body": ARRAYS["body"].ravel()[:4], "head": np.append(ARRAYS["body"].ravel()[4:], ARRAYS["head"])},
        {"body": ARRAYS["body"]},
        {**ARRAYS, "more": np.empty(0, dtype=np.float32)},
    ],
    ids=["value", "shape", "shape turned", "transposed", "type", "name", "swapped", "cut elsewhere", "less", "empty"],
)
def test_a_receipt_is_for_one_update_s_values_names_types_and_shapes(other):
    assert digest(other) != digest(ARRAYS)


def test_the_order_in_which_arrays_come_and_lie_in_memory_does_not_matter():
    there = dict(reversed(ARRAYS.items())) | {"body": np.asfortranarray(ARRAYS["body"])}
    assert digest(there) == digest(ARRAYS)


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
