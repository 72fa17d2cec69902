"""Parameters in every role and records on any axis are computed as fast as can be proven, and equal the oracle."""

import re
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import GradientEngine, InPlaceError, register_rule, rules
from tests.device.models import Residual
from tests.gradients.oracle import (
    any_company,
    check_batches,
    check_every_clipping,
    cross_entropy,
    no_program,
)


def batch_of(size, *record):
    torch.manual_seed(0)
    return torch.randn(size, *record), torch.randint(3, (size,))


def built(kind, *arguments):
    torch.manual_seed(1)
    return kind(*arguments)


class TiedLinears(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x).tanh()).tanh()).flatten(1)[:, :3]


@pytest.mark.parametrize("record", [(4,), (2, 4)])
def test_linear_layers_with_one_weight(record):
    check_every_clipping(built(TiedLinears), *batch_of(5, *record))


class Transformer(nn.Module):
    """A class token and positions of its own, as in a vision transformer; optionally a bare scale."""

    def __init__(self, scale=None):
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 6, 4))
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.scale = scale

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = self.inner(x).tanh()
        x = self.scale(x) if isinstance(self.scale, nn.Module) else x if self.scale is None else x * self.scale
        return self.head(x)[:, 0] + self.head(x).mean(1)


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(1 + torch.rand(size))

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize(
    ("scale", "frozen", "method"),
    [
        (None, False, "book-keeping"),
        (None, True, "book-keeping"),
        (Scale(4), False, "book-keeping"),
        (nn.Parameter(torch.rand(4)), False, "vmap"),
    ],
    ids=["expanded", "frozen", "scale in a module of its own", "scale of the model"],
)
def test_bare_parameters(scale, frozen, method):
    """A module of its own that is nothing but a scale is vectorised alone; else the whole model is."""
    model = built(Transformer, scale)
    model.token.requires_grad_(not frozen)
    check_every_clipping(model, *batch_of(6, 5, 4), method=method)


def test_a_layer_with_a_forward_of_its_own_keeps_it():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    own = types.MethodType(lambda layer, x: functional.linear(x, 2 * layer.weight, layer.bias), model[0])
    model[0].forward = own
    inputs, targets = batch_of(5, 4)
    check_every_clipping(model, inputs, targets, method="vmap")
    assert model[0].forward is own


class ChangedInPlace(nn.Module):
    """Adds to the input of a shift in place."""

    def __init__(self):
        super().__init__()
        self.before, self.layer, self.head = nn.Linear(4, 4), Shift(), nn.Linear(4, 3)

    def forward(self, x):
        x = self.before(x)
        y = self.layer(x)
        x += 1
        return self.head(x + y)


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.rand(4))

    def forward(self, x):
        return x + self.bias


def test_autograd_would_not_notice_every_change_in_place():
    """A shift's gradient needs no input, but to compute the shift again does."""
    with no_program(), pytest.raises(InPlaceError, match="layer 'layer'"):
        GradientEngine(ChangedInPlace(), cross_entropy).prepare(*batch_of(5, 4))


class Gate(nn.Module):
    """A layer of one's own whose only parameter has no axis."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize("ruled", [False, True])
def test_a_parameter_without_an_axis_of_a_layer_of_ones_own(ruled):
    def gradients(layer, inputs, output_gradients):
        return {"scale": (inputs * output_gradients).sum(1)}

    model = nn.Sequential(nn.Linear(4, 5), Gate(), nn.Tanh(), nn.Linear(5, 3))
    with mock.patch.dict(rules._RULES):
        if ruled:
            register_rule(Gate, gradients)
        check_every_clipping(model, *batch_of(7, 4))
    assert GradientEngine(model, cross_entropy).stack(*batch_of(7, 4)) is None


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
}


@pytest.mark.parametrize("inner", ["Linear", "LSTM", pytest.param("MultiheadAttention", marks=pytest.mark.exhaustive)])
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


class Kinked(nn.Module):
    """Rounds by the number of records, as kernels do, so that its first unit is active for a record alone and dead in
    company; in float64 it is active in any."""

    def __init__(self):
        super().__init__()
        self.first, self.scaled, self.head = nn.Linear(6, 256), Scale(256), nn.Linear(256, 3)
        with torch.no_grad():
            self.first.weight[0], self.first.bias[0] = 0, 4e-5

    def forward(self, x):
        large = 1e3 * len(x)
        return self.head(self.scaled((self.first(x) + large - large).relu()))


def method_of(model, inputs):
    with any_company():
        engine = GradientEngine(model, cross_entropy)
        engine.prepare(inputs, torch.zeros(0, dtype=torch.int64))
    return engine.method


@pytest.mark.parametrize(("error", "fast"), [(0.0, True), (1e-3, False), (0.03, False)])
def test_a_unit_at_a_kink_is_told_from_a_wrong_rule(error, fast):
    """The rule's gradients are off by `error` of their size."""
    torch.manual_seed(0)
    kinked, x = Kinked(), torch.rand(3, 6)
    active = kinked.first(x) + 3e3 - 3e3 > 0, kinked.first(x) + 1e3 - 1e3 > 0
    assert [bool(unit[:, 0].any()) for unit in active] == [False, True]
    with mock.patch.dict(rules._RULES):
        register_rule(Scale, lambda layer, inputs, gradients: {"weight": (1 + error) * inputs * gradients})
        assert (method_of(kinked, x) == "book-keeping") == fast


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_no_seed_costs_a_residual_net_the_fast_method(seed):
    torch.manual_seed(seed)
    assert method_of(Residual(), torch.zeros(0, 3, 32, 32)) == "book-keeping"


# --- a rule of one's own ---

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "own-layer.md"


@pytest.mark.usefixtures("rows_alike")
def test_the_how_to_runs_as_written(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    torch.manual_seed(0)
    records, targets = torch.randn(7, 5, 8), torch.randint(3, (7,))
    with mock.patch.dict(rules._RULES):
        exec(code, names := {})
        assert capsys.readouterr().out == "book-keeping\n"
        rule = mock.Mock(wraps=names["gate_gradients"])
        rules.register_rule(names["Gate"], rule)
        with_rule = GradientEngine(names["model"], cross_entropy).clipped_sum(records, targets, 0.5)
        rows = [len(call.args[1]) for call in rule.call_args_list]
        assert rows[:2] == [3, 5] and rows[-1] == 32  # the two probes, at last the records in a part of 32 rows
    assert rules.rule_for(names["Gate"](8)) is None
    without = GradientEngine(names["model"], cross_entropy).clipped_sum(records, targets, 0.5)
    assert torch.allclose(with_rule, without, atol=1e-6)
