"""Each layer with a rule, of random shape and in every clipping mode, equals the per-record loop in float64."""

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.products import as_on_gpu
from tests.gradients.oracle import any_company, check_batches, check_every_clipping, cross_entropy

CLASSES = 3


class Net(nn.Module):
    """The layer alone, or after another trained one; what it returns is mixed to three scores without parameters."""

    def __init__(self, layer, before=None, read=None):
        super().__init__()
        self.before, self.layer, self._read = before or nn.Identity(), layer, read or (lambda layer, x: layer(x))

    def forward(self, x):
        read = self._read(self.layer, self.before(x)).flatten(1)
        mixing = torch.arange(1, 1 + read.shape[1]).outer(torch.tensor([3, 17, 41])) % 101 - 50
        return read.tanh() @ mixing.to(read) / (50 * read.shape[1] ** 0.5)


@dataclass
class Case:
    """A model, and the shape of a record or (number of ids, *shape)."""

    model: nn.Module
    record: tuple[int, ...]
    ids: int = 0

    def batch(self, size):
        inputs = torch.randint(self.ids, (size, *self.record)) if self.ids else torch.randn(size, *self.record)
        return inputs, torch.randint(CLASSES, (size,))


sizes = st.integers(1, 4)
switch = st.booleans()


def seeded(draw):
    torch.manual_seed(draw(st.integers(0, 99)))


@st.composite
def linear(draw):
    seeded(draw)
    d, p = draw(st.sampled_from([1, 3, 40])), draw(st.sampled_from([2, 40]))
    before = nn.Linear(d, d) if draw(switch) else None
    return Case(Net(nn.Linear(d, p, bias=draw(switch)), before), (*draw(st.lists(sizes, max_size=2)), d))


@st.composite
def convolution(draw):
    seeded(draw)
    kind, dimensions = draw(st.sampled_from([(nn.Conv1d, 1), (nn.Conv2d, 2), (nn.Conv3d, 3)]))
    farthest = draw(st.integers(1, 2))

    def each(least, most):
        return st.tuples(*[st.integers(least, most)] * dimensions)

    kernel, dilation, groups = draw(each(1, 3)), draw(each(1, farthest)), draw(st.integers(1, farthest))
    padding = draw(each(0, 2) | st.sampled_from(["same", "valid"]))
    channels = groups * draw(st.sampled_from([1, 3, 8]))
    layer = kind(
        channels,
        2 * groups,
        kernel,
        stride=1 if padding == "same" else draw(each(1, 2)),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(switch),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    longest = {1: 20, 2: 13, 3: 6}[dimensions]
    space = [
        draw(st.integers(max(3, far * (size - 1) + 1), longest)) for size, far in zip(kernel, dilation, strict=True)
    ]
    before = kind(channels, channels, 1) if draw(switch) else None
    return Case(Net(layer, before), (channels, *space))


@st.composite
def embedding(draw):
    seeded(draw)
    ids = draw(st.integers(2, 6))
    padding = draw(st.sampled_from([None, 0, ids - 1]))
    return Case(Net(nn.Embedding(ids, draw(sizes), padding)), tuple(draw(st.lists(sizes, max_size=2))), ids)


@st.composite
def trailing_norm(draw):
    seeded(draw)
    kind = draw(st.sampled_from([nn.LayerNorm, nn.RMSNorm]))
    shape = draw(st.lists(st.integers(3, 5), min_size=1, max_size=2))
    options = {"bias": draw(switch)} if kind is nn.LayerNorm else {"eps": 1e-5}
    before = nn.Linear(shape[-1], shape[-1]) if draw(switch) else None
    return Case(Net(kind(shape, **options), before), (*draw(st.lists(sizes, max_size=2)), *shape))


@st.composite
def group_norm(draw):
    seeded(draw)
    groups, each = draw(sizes), draw(st.integers(3, 4))
    space = draw(st.lists(st.integers(3, 4), max_size=3))
    before = nn.Linear((groups * each, *space)[-1], (groups * each, *space)[-1]) if draw(switch) else None
    return Case(Net(nn.GroupNorm(groups, groups * each), before), (groups * each, *space))


@st.composite
def instance_norm(draw):
    seeded(draw)
    kind, dimensions = draw(st.sampled_from([(nn.InstanceNorm1d, 1), (nn.InstanceNorm2d, 2), (nn.InstanceNorm3d, 3)]))
    channels, space = draw(sizes), draw(st.tuples(*[st.integers({1: 4, 2: 3, 3: 2}[dimensions], 5)] * dimensions))
    before = nn.Linear(space[-1], space[-1]) if draw(switch) else None
    return Case(Net(kind(channels, affine=True), before), (channels, *space))


@st.composite
def attention(draw):
    seeded(draw)
    heads, size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    first, bias, padded = draw(switch), draw(switch), draw(switch)
    kind = draw(st.sampled_from(["self", "keys", "keys and values", "other sizes"]))
    mask = draw(st.sampled_from([None, "causal", "is_causal", "float", "for each head"]))
    asked = {"need_weights": draw(switch), "average_attn_weights": draw(switch)}
    width, wide = heads * size, {"kdim": 2, "vdim": 1} if kind == "other sizes" else {}
    layer = nn.MultiheadAttention(width, heads, bias=bias, batch_first=first, **wide)

    def read(layer, x):
        other = x.flip(1) * 0.5 + x.mean(1, keepdim=True)
        key, value = {
            "self": (x, x),
            "keys": (other, x),
            "keys and values": (other, other),
            "other sizes": (torch.cat([x, x], 2)[..., :2], x[..., :1]),
        }[kind]
        triangle = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        masks = {"float": triangle.to(x) * -1.5, "for each head": triangle.repeat(len(x) * heads, 1, 1)}
        attn_mask = masks.get(mask, triangle) if mask else None
        padding = torch.cat([torch.zeros_like(x[:, :1, 0]), x[:, 1:, 0]], 1) > 0.3 if padded else None
        if padded and mask == "float":
            padding = padding.to(x) * -2.0
        passed = (x, key, value) if first else turned(x, key, value)
        masked = {"key_padding_mask": padding, "attn_mask": attn_mask, "is_causal": mask == "is_causal"}
        output, weights = layer(*passed, **masked, **asked)
        output = output if first else output.transpose(0, 1)
        return output if weights is None else torch.cat([output.flatten(1), weights.flatten(1)], 1)

    return Case(Net(layer, nn.Linear(width, width) if draw(switch) else None, read), (draw(sizes), width))


def turned(*tensors):
    """Time first; what was one tensor stays one."""
    memo = {id(t): t.transpose(0, 1) for t in tensors}
    return [memo[id(t)] for t in tensors]


@st.composite
def recurrent(draw):
    seeded(draw)
    kind = draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))
    d, hidden, layers = draw(sizes), draw(st.integers(2, 4)), draw(st.integers(1, 2))
    first, both = draw(switch), draw(switch)
    options = {"proj_size": draw(st.integers(0, 1))} if kind is nn.LSTM else {}
    if kind is nn.RNN:
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    layer = kind(d, hidden, layers, bias=draw(switch), batch_first=first, bidirectional=both, **options)
    given_state = draw(switch)

    def read(layer, x):
        state = None
        if given_state:
            sizes = (options.get("proj_size") or hidden, hidden)[: 1 + (kind is nn.LSTM)]
            state = tuple(x.mean((1, 2)).expand(layers * (1 + both), n, -1).transpose(1, 2).contiguous() for n in sizes)
            state = state if kind is nn.LSTM else state[0]
        output, final = layer(x if first else x.transpose(0, 1), state)
        output = output if first else output.transpose(0, 1)
        finals = final if isinstance(final, tuple) else (final,)
        return torch.cat([output.flatten(1), *(f.transpose(0, 1).flatten(1) for f in finals)], 1)

    before = nn.Linear(d, d) if draw(switch) else None
    return Case(Net(layer, before, read), (draw(st.integers(1, 5)), d))


@st.composite
def recurrent_cell(draw):
    seeded(draw)
    kind = draw(st.sampled_from([nn.RNNCell, nn.LSTMCell, nn.GRUCell]))
    d, steps, given_state = draw(sizes), draw(st.integers(1, 3)), draw(switch)

    def read(layer, x):
        state = torch.ones(len(x), 3).to(x) if given_state else None
        state = (state, 0.5 * state) if given_state and kind is nn.LSTMCell else state
        for step in range(steps):
            state = layer(x[:, step], state)
        return torch.cat(state, 1) if kind is nn.LSTMCell else state

    return Case(Net(kind(d, 3, bias=draw(switch)), nn.Linear(d, d) if draw(switch) else None, read), (steps, d))


LAYERS = {
    "Linear": linear(),
    "convolution": convolution(),
    "Embedding": embedding(),
    "trailing norm": trailing_norm(),
    "GroupNorm": group_norm(),
    "InstanceNorm": instance_norm(),
    "MultiheadAttention": attention(),
    "recurrent": recurrent(),
    "cell": recurrent_cell(),
}

QUICK = {"Linear"}


class Twice(nn.Module):
    """Uses all its layers twice."""

    def __init__(self, net, ids):
        super().__init__()
        self.net, self._ids = net, ids

    def forward(self, x):
        return self.net(x) + self.net((x + 1) % self._ids if self._ids else x.square())


def freeze(model, rest):
    """Freeze every other parameter: weights and not their biases, or the other way round."""
    parameters = list(model.parameters())
    for index, parameter in enumerate(parameters):
        parameter.requires_grad_(len(parameters) == 1 or index % 2 == rest)


@pytest.mark.parametrize(
    "layer", [layer if layer in QUICK else pytest.param(layer, marks=pytest.mark.exhaustive) for layer in LAYERS]
)
@given(data=st.data(), frozen=st.sampled_from([None, None, 0, 1]), twice=switch, program=switch, gpu=switch)
def test_equals_the_per_record_loop(layer, data, frozen, twice, program, gpu):
    """Records that are NaN or infinite, or have ids that do not exist, contribute zero; on a GPU's ways, too."""
    case = data.draw(LAYERS[layer])
    if frozen is not None:
        freeze(case.model, frozen)
    inputs, targets = case.batch(5)
    spoiled = inputs.clone()
    spoiled[1], spoiled[3] = (case.ids, -1) if case.ids else (torch.nan, torch.inf)
    with as_on_gpu() if gpu else nullcontext():
        check_batches(
            Twice(case.model, case.ids) if twice else case.model,
            [(inputs, targets, None), (spoiled, targets, None)],
            method=("program", "book-keeping") if program else "book-keeping",
        )


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LayerNorm(4)])
def test_batches_may_have_any_number_of_records_of_which_some_are_masked(layer):
    inputs, targets = Case(None, (2, 4)).batch(5)
    masks = [None, torch.tensor([True, False, True, True, False]), torch.zeros(5, dtype=torch.bool)]
    check_batches(Net(layer), [(inputs, targets, mask) for mask in masks] + [(inputs[:1], targets[:1], None)])
    empty = GradientEngine(Net(layer), cross_entropy).clipped_sum(inputs[:0], targets[:0], 1.0)
    assert torch.equal(empty, torch.zeros(sum(p.numel() for p in layer.parameters())))


@pytest.mark.exhaustive
@settings(derandomize=True, max_examples=25)  # the same in every lane: some network amplifies 2^-8 beyond any tolerance
@given(layer=st.sampled_from(sorted(LAYERS)), data=st.data())
def test_half_precision_activations_do_not_cost_the_rule(layer, data):
    case = data.draw(LAYERS[layer])
    inputs, targets = case.batch(4)
    half = GradientEngine(case.model, cross_entropy, autocast=torch.bfloat16)
    exact = GradientEngine(case.model, cross_entropy)
    with any_company():  # some processors' kernels in half precision do not treat all rows of such small layers alike
        result, expected = (private.clipped_sum(inputs, targets, 1e6) for private in (half, exact))
    assert half.method == "book-keeping in bfloat16"
    assert (result - expected).norm() < 0.1 * expected.norm()


def attended(layer, x):
    return layer(x, x, x)[0]


def attended_to_itself_and_others(layer, x):
    return attended(layer, x) + layer(x, x.flip(1), x)[0]


def outputs_of(layer, x):
    return layer(x)[0]


def one_by_one(layer, x):
    return torch.stack([layer(record)[0] for record in x])


RARITIES = {
    "added zero": (lambda: nn.MultiheadAttention(4, 2, batch_first=True, add_zero_attn=True), attended, "vmap"),
    "self and cross": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), attended_to_itself_and_others, "vmap"),
    "without a batch": (lambda: nn.GRU(4, 3), one_by_one, "loop"),
    "dropout, off": (lambda: nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True).eval(), outputs_of, "book-keeping"),
    "dropout of attention, off": (
        lambda: nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True).eval(),
        attended,
        "book-keeping",
    ),
}


@pytest.mark.parametrize("rarity", RARITIES)
def test_what_a_rule_does_not_cover_falls_back_and_dropout_that_is_off_does_not(rarity):
    torch.manual_seed(0)
    make, read, method = RARITIES[rarity]
    check_every_clipping(Net(make(), read=read), *Case(None, (5, 4)).batch(4), method=method)
