"""A piece's norm is that of the vector that it adds, sums are as exact as stated, and a program spoils nothing."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedprivacy.gradients import GradientEngine, pieces
from fedprivacy.gradients.pieces import (
    BLOCK,
    STRETCH,
    Gram,
    Outer,
    Part,
    Placed,
    Rewritten,
    Sums,
    TableRows,
    Written,
    join_pieces,
    over_positions,
    squared_norms,
)
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE, SUM_ALLOWANCE
from fedprivacy.mechanisms.lattice_noise import LATTICE_ALLOWANCE
from tests.gradients.oracle import check_every_clipping, no_program

ALL = 2**62


def norms(piece):
    return squared_norms([piece], [0], 1)[0].sqrt()


def alone(piece, record, scale, shape):
    """The vector that one record adds."""
    weights, out = torch.zeros(len(piece.sources[0])), torch.zeros(shape)
    weights[record] = scale
    piece.add_weighted_sum(weights, out)
    return out.double()


def check(piece, gradients):
    """Against the gradients [batch, *parameter] in float64."""
    shape = gradients.shape[1:]
    assert torch.allclose(norms(piece), gradients.flatten(1).norm(dim=1), rtol=1e-5)
    assert torch.allclose(piece.gradients().double(), gradients, rtol=1e-5, atol=1e-5)
    weights, out = torch.randn(len(gradients)), torch.ones(shape)
    piece.add_weighted_sum(weights, out)
    expected = 1 + torch.einsum("b,b...->...", weights.double(), gradients)
    assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e-5)
    lanes, start = divmod(len(gradients), 2)
    if lanes:  # of two records each; the first of an odd number is in none
        weights, gradients = (rows[start:].unflatten(0, (lanes, 2)) for rows in (weights, gradients))
        out = torch.ones(lanes, *shape)
        piece.add_weighted_sum(weights, out, start)
        expected = 1 + torch.einsum("lb,lb...->l...", weights.double(), gradients)
        assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e-5)


@given(records=st.integers(1, 5), positions=st.integers(1, 4), d=st.integers(1, 9), p=st.integers(1, 9))
def test_all_forms_of_a_linear_map_s_gradient_agree(records, positions, d, p):
    torch.manual_seed(records + 10 * positions)
    inputs, grads = torch.randn(records, positions, d), torch.randn(records, positions, p)
    gradients = torch.einsum("btp,btd->bpd", grads.double(), inputs.double())
    steps = [Outer(inputs[:, t], grads[:, t]) for t in range(positions)]
    with mock.patch.object(pieces, "_CHUNK_BYTES", 2 * 4 * d * p):
        rewritten = over_positions(inputs, grads, kept_bytes=0)
    assert isinstance(rewritten, Outer if positions == 1 else Rewritten)
    by_hand = Written(gradients.float().transpose(1, 2).contiguous(), axes=(1, 0))
    for piece in (Gram(inputs, grads), over_positions(inputs, grads, ALL), rewritten, join_pieces(steps, ALL), by_hand):
        check(piece, gradients)
    check(join_pieces([rewritten, Gram(inputs, grads), *steps], ALL), 3 * gradients)


def test_a_table_s_rows_are_added_where_they_are(both_ways):
    ids, grads = torch.randint(7, (6, 5)), torch.randn(6, 5, 3)
    gradients = torch.zeros(6, 7, 3, dtype=torch.float64)
    gradients.index_put_((torch.arange(6).unsqueeze(1), ids), grads.double(), accumulate=True)
    check(TableRows(ids, grads, torch.Size([7, 3])), gradients)


@pytest.mark.parametrize("groups", [[0] * 7, [0, 1, 0, 2, 1, 0, 0]], ids=["flat", "per layer"])
@pytest.mark.parametrize("number", [1, 2, 3, 6, 7])
def test_squared_norms_are_those_of_all_the_group_s_gradients(groups, number, both_ways):
    """Also of a bias, whose gradient is a factor of its weight's; a group may have no piece."""
    inputs, grads = (torch.randn(5, width) * 10.0 ** torch.arange(5).unsqueeze(1) for width in (4, 6))
    made = [Outer(inputs, grads), Written(grads), Outer(grads, grads), *(Written(torch.randn(5, 3)) for _ in range(4))]
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for piece, group in zip(made[:number], groups, strict=False):
        expected[group] += piece.gradients().double().flatten(1).square().sum(1)
    found = squared_norms(made[:number], groups[:number], max(groups) + 1)
    assert torch.allclose(found, expected[: len(found)], rtol=1e-5, atol=0.0)


def test_few_positions_of_a_large_parameter_are_not_written():
    assert isinstance(over_positions(torch.randn(2, 4, 64), torch.randn(2, 4, 64), ALL), Gram)
    assert isinstance(over_positions(torch.randn(2, 5, 64), torch.randn(2, 5, 64), ALL), Written)


@pytest.mark.parametrize("offset", [50.0, -50.0])
@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_a_norm_survives_cancellation(offset, spread):
    """Inputs share an offset, and output gradients sum to almost nothing: in float32 the ghost norm is lost."""
    torch.manual_seed(0)
    inputs = offset + spread * torch.randn(64, 8, 20)
    grads = torch.randn(64, 8, 30)
    grads -= grads.mean(1, keepdim=True)
    piece, clipping_norm = Gram(inputs, grads), 1.0
    exact = torch.einsum("btp,btd->bpd", grads.double(), inputs.double()).flatten(1).norm(dim=1)
    assert (norms(piece) >= exact * (1 - 1e-5)).all(), "or a record counts for more than C"
    assert (norms(piece) <= exact * (1.2 if spread == 1e-4 else 1 + 1e-4)).all()
    scales = clipping_norm / norms(piece)
    for record in range(64):
        assert alone(piece, record, scales[record], (30, 20)).norm() <= clipping_norm * (1 + 1e-4)


@pytest.mark.parametrize("size", [2.0**-20, 1.0, 2.0**20])
def test_what_cancels_deeper_than_float64_reaches_is_clipped_all_the_same(size):
    """Two positions whose terms differ by 2^-depth: the squared norm is lost where the sum is not."""
    for depth in range(10, 60, 2):
        inputs, grads = torch.zeros(1, 2, 64), torch.zeros(1, 2, 64)
        inputs[:, :, 0], inputs[0, 0, 1], inputs[0, 1, 1] = 1.0, 2.0**-depth, -(2.0**-depth)
        grads[0, 0, :], grads[0, 1, :] = size, -size
        piece = Gram(inputs, grads)
        summed = alone(piece, 0, torch.tensor(1.0), (64, 64)).norm()
        assert summed > 0
        assert norms(piece)[0] >= summed * (1 - 1e-5)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Conv1d(5, 4, 3), nn.Flatten(), nn.Linear(152, 3))


def sequences(size):
    torch.manual_seed(2)
    return torch.randn(size, 5, 40), torch.randint(3, (size,))


@pytest.mark.parametrize("max_memory", [1, 10_000, 40_000, 10**9])
def test_parts_and_rewriting_change_nothing_but_rounding(max_memory):
    with no_program(), mock.patch.object(pieces, "Rewritten", wraps=Rewritten) as rewritten:
        check_every_clipping(net(), *sequences(9), max_memory=max_memory)
    sizes = [len(call.args[1][0]) for call in rewritten.call_args_list]
    if max_memory == 40_000:
        assert any(size > 3 for size in sizes), "gradients of records, not only of the probe, are written twice"


LARGE = 4097
"""Entries of a parameter that is summed in float32 blocks."""

PART = 256
"""Records that are added at a time."""

UNIT = 2.0**-24
"""Relative rounding of one operation in float32."""


def test_sums_are_those_of_written_gradients_whatever_the_pieces(both_ways):
    """Some rows of a parameter, a table, what is written twice: three stretches a part, which a GPU adds in lanes."""
    shapes, rows, expected = [torch.Size(shape) for shape in ((6, 4), (7, 3), (5, 8))], 3 * STRETCH, 0.0
    sums = Sums(shapes, torch.float32, torch.device("cpu"), rows)
    for _ in range(2):
        inputs, grads, scales = torch.randn(rows, 3, 8), torch.randn(rows, 3, 5), torch.rand(2, rows).double()
        table = TableRows(torch.randint(7, (rows, 5)), torch.randn(rows, 5, 3), shapes[1])
        twice = over_positions(inputs, grads, kept_bytes=0)
        used = [Written(torch.randn(rows, 2, 4)), Outer(inputs[:, 0, :4], grads[:, 0, :4]), table, twice]
        sums.add(list(map(Placed, (Part(0, 0, 2), Part(0, 2, 6), Part(1), Part(2)), used)), scales, [0, 1, 0])
        written = zip(scales[[0, 0, 1, 0]], (piece.gradients().double().flatten(1) for piece in used), strict=True)
        expected += torch.cat([scale @ gradients for scale, gradients in written])
    assert torch.allclose(sums.total(), expected, rtol=1e-5, atol=1e-5)


def summed_in_parts(values):
    """The sum [LARGE] of vectors of equal entries, one for each value, in parts of 256."""
    sums = Sums([torch.Size([LARGE])], torch.float32, torch.device("cpu"), PART)
    for some in values.split(PART):
        rows = torch.zeros(PART).index_copy_(0, torch.arange(len(some)), some)
        piece = Written(rows.unsqueeze(1).expand(PART, LARGE))
        sums.add([Placed(Part(0), piece)], torch.ones(1, PART, dtype=torch.float64), [0])
    return sums.total()


def length(vector):
    """The norm, in that of a vector of ones: as long as a record of value 1."""
    return vector.norm().item() / LARGE**0.5


def stray(values):
    """The distance from the exact sum."""
    return length(summed_in_parts(values) - values.double().sum())


def hostile_values(count, seed):
    """Numbers from 0.5 to 1, which add up without cancelling: of many blocks the one that rounds worst, repeated."""
    generator = torch.Generator().manual_seed(seed)
    blocks = 0.5 + 0.5 * torch.rand(200, BLOCK, generator=generator)
    worst = torch.tensor([stray(block) for block in blocks]).argmax()
    return blocks[worst].repeat(-(-count // BLOCK))[:count]


@pytest.mark.parametrize("records", [1000, 16_384, 65_536])
def test_neighbours_differ_by_c_and_the_allowance_in_the_worst_arrangement(records, both_ways):
    """The last record takes the place of the one that leaves, as in the guarantee."""
    values = hostile_values(records, seed=0)
    for place in (0, records // 2):
        without = values.clone()
        without[place] = values[-1]
        assert length(summed_in_parts(values) - summed_in_parts(without[:-1]) - values[place].double()) <= SUM_ALLOWANCE


@pytest.mark.soak
def test_a_million_records_are_within_the_allowance():
    engine = GradientEngine(nn.Linear(1, 1, bias=False), lambda outputs, _: outputs[:, 0])
    rows, targets = hostile_values(1_000_000, seed=1)[:, None].contiguous(), torch.zeros(1_000_000)
    rows[0] = 2.0  # clipped to 1
    without = rows.clone()
    without[0] = rows[-1]
    change = engine.clipped_sum(rows, targets, 1.0) - engine.clipped_sum(without[:-1], targets[:-1], 1.0)
    assert abs(change.item() - 1.0) <= SUM_ALLOWANCE


def test_the_allowance_covers_what_the_proof_adds_up():
    norms, most_records = 2e-5, 2.0**24
    for block in (BLOCK, STRETCH):  # a CPU's, and that of a GPU's lane
        rounded, float64 = 4 * (STRETCH + 3) * UNIT * block, most_records**2 / block * 2.0**-53
        assert (1 + norms) * (1 + rounded) - 1 + float64 <= SUM_ALLOWANCE
    assert SUM_ALLOWANCE + LATTICE_ALLOWANCE == ROUNDING_ALLOWANCE <= 0.0015


SETTINGS = {"Linear": (6, 6), "LayerNorm": (6,), "Unflatten": (1, (2, 3))}
CHAINS = [
    "Tanh Linear Tanh Linear",
    "Linear Tanh Tanh ReLU Sigmoid",
    "Linear Flatten Sigmoid LayerNorm Sigmoid Flatten",
    "Linear SiLU Tanh SiLU ReLU",
    "Linear Tanh Unflatten Tanh Flatten ReLU",
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("tracked", [False, True])
def test_activations_in_any_order_equal_the_loop(chain, tracked):
    torch.manual_seed(1)
    layers = [getattr(nn, name)(*SETTINGS.get(name, ())) for name in [*chain.split(), "Linear"]]
    inputs, targets = torch.randn(5, 6), torch.randint(3, (5,))
    before = inputs.clone()
    check_every_clipping(nn.Sequential(*layers), inputs.requires_grad_(tracked), targets, method="program")
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("pooling", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_pooling_sends_the_gradient_to_the_largest(channels, pooling):
    """Two convolutions, of which the second reads what the first has laid out, and a linear map what both have."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(channels, 16, (3, 2), padding=1), nn.Tanh(), pooling, nn.Conv2d(16, 3, 2), nn.GELU(), nn.Flatten()
    )
    inputs, targets = torch.randn(7, channels, 9, 9), torch.randint(3, (7,))
    model = nn.Sequential(*body, nn.Linear(body(inputs).shape[1], 3))
    check_every_clipping(model, inputs, targets, method=("program", "book-keeping"))


def test_an_activation_that_ends_the_model_leaves_the_loss_s_gradient_alone():
    torch.manual_seed(0)
    seen = []

    def loss(outputs, targets):
        outputs.register_hook(lambda gradient: seen.append((gradient, gradient.clone())))
        return (outputs - targets).square().sum(1)

    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    check_every_clipping(model, torch.randn(5, 6), torch.rand(5, 4), method="program", loss=loss)
    assert seen and all(torch.equal(gradient.nan_to_num(), copy.nan_to_num()) for gradient, copy in seen)
