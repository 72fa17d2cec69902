"""The axis that counts the records is read off the probe's shape, proved by the self-check, and then kept."""

import pytest
import torch
from torch import nn

from tests.gradients.oracle import check_batches, check_every_clipping


def batch_of(size, *record):
    torch.manual_seed(0)
    return torch.randn(size, *record), torch.randint(3, (size,))


def check_sizes(model, sizes, *record, **how):
    """Check batches of several numbers of records by one engine."""
    check_batches(model, [(*batch_of(size, *record), None) for size in sizes], **how)


class TimeFirst(nn.Module):
    """Everything inside is [steps, batch, d]."""

    def __init__(self, inner):
        super().__init__()
        torch.manual_seed(1)
        self.before, self.inner, self.norm, self.head = nn.Linear(4, 4), inner(), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.before(x.transpose(0, 1))
        y = self.inner(x, x, x)[0] if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)
        y = y[0] if isinstance(y, tuple) else y
        return self.head(self.norm(x + y).tanh()).mean(0)


INNER = {
    "Linear": lambda: nn.Linear(4, 4),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "LSTM": lambda: nn.LSTM(4, 4),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 5, 0.0),
}


QUICK = ("Linear", "encoder")


@pytest.mark.parametrize(
    "inner", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive) for name in INNER]
)
@pytest.mark.parametrize(("steps", "sizes"), [(5, [5, 1]), (1, [4]), (3, [3, 5])])
def test_time_first_whatever_the_batch(inner, steps, sizes):
    """A sequence as long as the probe, of three records, is not mistaken for it."""
    check_sizes(TimeFirst(INNER[inner]), sizes, steps, 4, method="vmap" if steps == 3 else "book-keeping")


class Positions(nn.Module):
    """Rows of a table for the positions 0 to T - 1, which have no axis for the records."""

    def __init__(self, length, leading):
        super().__init__()
        torch.manual_seed(1)
        self.before, self.table, self.head = nn.Linear(4, 4), nn.Embedding(length, 4), nn.Linear(4, 3)
        self.register_buffer("ids", torch.arange(length).unsqueeze(0) if leading else torch.arange(length))

    def forward(self, x):
        return self.head((self.before(x) + self.table(self.ids)).tanh()).mean(1)


@pytest.mark.parametrize("leading", [False, True])
@pytest.mark.parametrize(("length", "sizes"), [(5, [4, 5, 1]), (1, [4]), (2, [3]), (3, [3, 5])])
def test_positions_without_a_batch_axis(length, sizes, leading):
    """As many positions as the probe has records, three, are not mistaken for them."""
    check_sizes(Positions(length, leading), sizes, length, 4, method="vmap" if length == 3 else "book-keeping")


class Folded(nn.Module):
    """Joins records and positions to one axis, which no rule can take apart."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.reshape(-1, 4)).view(len(x), -1, 3).mean(1)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_records_folded_into_positions_fall_back(steps):
    check_every_clipping(Folded(), *batch_of(5, steps, 4), method="book-keeping" if steps == 1 else "vmap")
