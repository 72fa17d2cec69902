"""What is released does not tell how many records were summed: not by its type, and not by which values can occur.

Sums of more than 1,024 records were float64 once, and those of fewer float32. A quotient of float64 numbers, rounded to
float32, is mostly none that a float32 number has: one released update told 1,025 records from 1,024.
"""

import numpy as np
import pytest
import torch
from flwr.app import MessageType, RecordDict
from torch import nn
from torch.nn import functional

from fedprivacy.flower.wire.messages import GRANT
from tests.privacy.asking import USUAL, Canaries, Client, arrays_of

DIVISOR = np.float32(3.0)


class Leaning(Canaries):
    """Everybody is of class 1 and predicted to be of class 0, so that sums are long."""

    def model(self):
        model = nn.Linear(self.records.shape[1], 10)
        nn.init.zeros_(model.weight)
        with torch.no_grad():
            model.bias.zero_()[0] = 30.0
        return model

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs, torch.ones_like(targets).long(), reduction="none")


def records(count):
    return torch.rand(count, 64, generator=torch.Generator().manual_seed(count))


def unattainable(moved):
    """How many released numbers are the quotient of no float32 number."""
    moved = moved[moved != 0].astype(np.float32)
    centre = (moved * DIVISOR).astype(np.float32)
    found = np.zeros(len(moved), dtype=bool)
    for towards in (np.float32(np.inf), np.float32(-np.inf)):
        value = centre
        for _ in range(4):
            found |= (value / DIVISOR).astype(np.float32) == moved
            value = np.nextafter(value, towards)
    return int((~found).sum())


def test_the_check_sees_what_float64_leaves_behind():
    sums = np.random.default_rng(0).normal(size=640) * 300
    assert unattainable(sums.astype(np.float32) / DIVISOR) == 0
    assert unattainable((sums / 3.0).astype(np.float32)) > 0


@pytest.mark.parametrize("count", [1024, 1025])
def test_every_released_number_can_occur_whatever_the_number_of_records(count):
    client = Client(Leaning(records(count)))
    for attempt in range(1, 4):
        moved, _ = client.train(expected_batch_size=float(DIVISOR), attempt=attempt)
        assert unattainable(moved[:640]) == 0


def reply_of(count):
    """The whole reply of a client with so many records."""
    task = Leaning(records(count))
    content = RecordDict({GRANT: USUAL.to_record(), "arrays": arrays_of(task)})
    return Client(task).send(MessageType.TRAIN, content)


def test_replies_of_neighbours_have_one_form():
    """Names in one order, types, shapes, and as many bytes: those of the model that was sent."""
    forms = set()
    for count in (0, 1, 128, 129, 1024, 1025):
        content = reply_of(count).content
        arrays = [(n, a.dtype, tuple(a.shape), a.stype, len(a.data)) for n, a in content["arrays"].items()]
        receipt = [(name, type(value).__name__) for name, value in content["fedprivacy.receipt"].items()]
        forms.add((tuple(content), tuple(arrays), tuple(receipt)))
    ((_, arrays, _),) = forms
    sent = arrays_of(Leaning(records(1)))
    assert arrays == tuple((n, a.dtype, tuple(a.shape), a.stype, len(a.data)) for n, a in sent.items())
