"""Models train in the modes in which they are made: what draws or mixes in train() alone is admitted in eval()."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import GradientEngine, UnsupportedModelError, check_model, check_on_blank, made_private
from fedprivacy.gradients.structure import replacements
from tests.gradients.oracle import check_every_clipping, cross_entropy

TARGETS = torch.arange(40) % 3


class StochasticDepth(nn.Module):
    """Drops records' branches, as torchvision's does."""

    name = "p"

    def __init__(self, p):
        super().__init__()
        setattr(self, self.name, p)

    def forward(self, x):
        p = getattr(self, self.name)
        if not self.training or p == 0:
            return x
        return x * x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(1 - p) / (1 - p)


class SwinDropPath(StochasticDepth):
    """Transformers name the probability otherwise."""

    name = "drop_prob"


class Block(nn.Module):
    """A residual block of images around any layer."""

    def __init__(self, layer):
        super().__init__()
        self.conv, self.layer, self.head = nn.Conv2d(3, 8, 3, padding=1), layer, nn.Linear(8, 3)

    def forward(self, x):
        x = self.conv(x)
        return self.head((x + self.layer(x).tanh()).mean((2, 3)))


def learned(norm):
    """A normalisation with statistics and a scale that it has learned."""
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


LAYERS = {
    "Dropout": lambda: nn.Dropout(0.5),
    "RReLU": nn.RReLU,
    "StochasticDepth": lambda: StochasticDepth(0.5),
    "SwinDropPath": lambda: SwinDropPath(0.5),
    "BatchNorm": lambda: learned(nn.BatchNorm2d(8)),
    "frozen BatchNorm": lambda: learned(nn.BatchNorm2d(8)).requires_grad_(False),
}


QUICK = {"Dropout", "BatchNorm"}
SOME = [
    pytest.param(made, id=name, marks=() if name in QUICK else pytest.mark.exhaustive) for name, made in LAYERS.items()
]


@pytest.fixture(params=SOME)
def block(request):
    torch.manual_seed(0)
    return Block(request.param())


def test_a_layer_is_refused_in_train_and_has_exact_gradients_in_eval(block):
    with pytest.raises(UnsupportedModelError, match=r"layer 'layer' is an? "):
        check_model(block)
    block.layer.eval()
    check_model(block)
    check_on_blank(block, cross_entropy, torch.zeros(0, 3, 4, 4), TARGETS)
    check_every_clipping(block, torch.randn(40, 3, 4, 4), TARGETS)


@pytest.mark.parametrize("name", [*sorted(QUICK), pytest.param("RReLU", marks=pytest.mark.exhaustive)])
def test_a_later_call_of_train_changes_neither_gradients_nor_buffers(name):
    torch.manual_seed(0)
    block, records = Block(LAYERS[name]()), torch.randn(40, 3, 4, 4)
    block.layer.eval()
    buffers = copy.deepcopy(dict(block.named_buffers()))
    engine = GradientEngine(block, cross_entropy)
    expected = engine.clipped_sum(records, TARGETS, 0.5)
    for again in (engine, GradientEngine(block, cross_entropy)):  # the second is prepared in train()
        block.train()
        assert torch.equal(again.clipped_sum(records, TARGETS, 0.5), expected)
        assert all(layer.training for layer in block.modules())
        block.layer.eval()
    assert all(torch.equal(value, buffers[name]) for name, value in block.named_buffers())


class Awake(nn.Module):
    """Has its inner layer in eval(), and calls train() on it in every pass."""

    def __init__(self, layer):
        super().__init__()
        self.inner, self.layer = nn.Linear(6, 8), layer.eval()

    def forward(self, x):
        self.layer.train()
        return self.layer(self.inner(x).unflatten(1, (2, 4))).flatten(1)


class Always(nn.Dropout):
    """Draws in eval(), too."""

    def forward(self, x):
        return functional.dropout(x, self.p, training=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Awake(nn.Dropout(0.5)), "layer 'layer' draws random numbers"),
        (Awake(nn.BatchNorm1d(2)), "layer 'layer' keeps something of a batch"),
        (nn.Sequential(nn.Linear(6, 3), Always(0.1).eval()), "layer '1' draws random numbers"),
    ],
    ids=["Dropout that wakes up", "BatchNorm that wakes up", "Dropout that never sleeps"],
)
def test_a_layer_that_does_not_stay_in_eval_is_refused(model, words):
    check_model(model)
    with pytest.raises((UnsupportedModelError, ValueError), match=words):
        check_on_blank(model, cross_entropy, torch.zeros(0, 6), TARGETS)


def test_made_private_says_what_it_replaces_and_leaves_frozen_statistics(block):
    records = torch.randn(4, 3, 4, 4)
    model = nn.Sequential(Block(nn.Identity()).conv, learned(nn.BatchNorm2d(8)).eval(), block.layer)
    mended = made_private(model)
    (change,) = replacements(model, mended)
    assert change.startswith(f"1 {type(block.layer).__name__} by ")
    check_model(mended)
    assert torch.equal(mended[:2](records), model[:2](records))
