"""A model with slow gradients is told which line makes them slow, and what to write instead."""

import inspect
import logging

import pytest
import torch
from torch import nn

from fedprivacy.gradients.methods import warn_of
from fedprivacy.single.loop import train
from tests.gradients.oracle import cross_entropy

pytestmark = pytest.mark.usefixtures("rows_alike")

BATCH = torch.rand(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        nn.init.eye_(self.first.weight)  # drawn at random, the branch may differ between records, which is refused

    def forward(self, x):
        x = self.first(x)
        if x.sum() > 0:
            x = x.tanh()
        return self.head(x)


@pytest.fixture
def warned(caplog):
    warn_of.cache_clear()
    caplog.set_level(logging.WARNING, "fedprivacy.gradients")
    return caplog


def line_of(text):
    lines, first = inspect.getsourcelines(Branching)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_training_warns_once_of_the_line_that_branches_and_how_to_write_it_and_of_nothing_in_a_record(warned):
    for model in (nn.Linear(6, 3), Branching(), Branching()):  # of a fast model nobody is warned
        train(model, cross_entropy, BATCH, epsilon=5.0, delta=1e-3, sampling_rate=0.5, steps=1, size_public=True)
    (record,) = warned.records
    assert "exact, but slow (loop)" in record.message and "torch.where" in record.message
    assert f"{__file__}:{line_of('if x.sum()')}" in record.message
    assert "tensor(" not in record.message
