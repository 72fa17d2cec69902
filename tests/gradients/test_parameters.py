"""Parameters in every role: tied, adapted, bare, of layers of one's own; each is clipped within its record's share."""

import types
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import GradientEngine, InPlaceError, methods, register_rule, rules
from tests.gradients.oracle import (
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


class TiedEmbedding(nn.Module):
    """A language model whose scores are products with the words' own rows."""

    def __init__(self, padding):
        super().__init__()
        self.words, self.inner, self.scores = nn.Embedding(7, 4, padding), nn.Linear(4, 4), nn.Linear(4, 7)
        self.scores.weight = self.words.weight

    def forward(self, ids):
        return self.scores(self.inner(self.words(ids)).tanh())


def per_token(outputs, targets):
    return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


@pytest.mark.parametrize("padding", [None, 2])
def test_an_embedding_and_a_linear_layer_with_one_weight(padding):
    torch.manual_seed(0)
    inputs, targets = torch.randint(7, (5, 6)), torch.randint(7, (5, 6))
    check_every_clipping(built(TiedEmbedding, padding), inputs, targets, loss=per_token)


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


def scaled(scale):
    return nn.Sequential(nn.Linear(4, 5), scale, nn.Tanh(), nn.Linear(5, 3))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_subclass_does_not_inherit_a_rule():
    model = nn.Sequential(Doubled(4, 5), nn.Tanh(), Doubled(5, 3))
    assert rules.rule_for(model[0]) is None
    check_every_clipping(model, *batch_of(5, 4))


def test_a_layer_with_a_forward_of_its_own_keeps_it():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    own = types.MethodType(lambda layer, x: functional.linear(x, 2 * layer.weight, layer.bias), model[0])
    model[0].forward = own
    inputs, targets = batch_of(5, 4)
    check_every_clipping(model, inputs, targets, method="vmap")
    assert model[0].forward is own


class Residual(nn.Module):
    """Adds to a layer's output, or to its input, in place."""

    def __init__(self, layer, changed):
        super().__init__()
        self.before, self.layer, self.head, self._changed = nn.Linear(4, 4), layer, nn.Linear(4, 3), changed

    def forward(self, x):
        x = self.before(x)
        y = self.layer(x)
        if self._changed == "output":
            y += 1
            y.relu_()
        else:
            x += 1
        return self.head(x + y)


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LayerNorm(4), Scale(4)])
def test_a_layer_s_output_may_be_changed_in_place(layer):
    check_every_clipping(Residual(layer, "output"), *batch_of(5, 4))


class Shift(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bias = nn.Parameter(torch.rand(size))

    def forward(self, x):
        return x + self.bias


def test_autograd_would_not_notice_every_change_in_place():
    """A shift's gradient needs no input, but to compute the shift again does."""
    with no_program(), pytest.raises(InPlaceError, match="layer 'layer'"):
        GradientEngine(Residual(Shift(4), "input"), cross_entropy).prepare(*batch_of(5, 4))


class Gate(nn.Module):
    """A layer of one's own whose only parameter has no axis."""

    def __init__(self, start=0.3):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(start))

    def forward(self, x):
        return x * self.scale


class Tempered(nn.Module):
    """Scores over a learnt temperature."""

    def __init__(self):
        super().__init__()
        self.scores, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return self.scores(x) * self.temperature.exp()


@pytest.mark.parametrize("method", ["vmap", "loop"])
def test_a_parameter_without_an_axis(method):
    with (
        mock.patch.object(methods, "Vectorised", side_effect=NotImplementedError) if method == "loop" else nullcontext()
    ):
        check_every_clipping(built(Tempered), *batch_of(7, 4), method=method)


@pytest.mark.parametrize("ruled", [False, True])
def test_a_parameter_without_an_axis_of_a_layer_of_ones_own(ruled):
    def gradients(layer, inputs, output_gradients):
        return {"scale": (inputs * output_gradients).sum(1)}

    model = scaled(Gate())
    with mock.patch.dict(rules._RULES):
        if ruled:
            register_rule(Gate, gradients)
        check_every_clipping(model, *batch_of(7, 4))
    assert GradientEngine(model, cross_entropy).stack(*batch_of(7, 4)) is None
