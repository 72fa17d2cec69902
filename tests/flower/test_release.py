"""What a client's signature stands for, and what its disk gives back."""

from dataclasses import replace

import numpy as np
import pytest

from fedprivacy.flower.client.release import Released, digest
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
    back = Released.unsealed(Released(arrays, receipt).sealed())
    assert back.receipt == receipt
    assert list(back.arrays) == list(arrays)
    assert digest(back.arrays) == receipt.update
