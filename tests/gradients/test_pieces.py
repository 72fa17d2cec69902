"""A piece's norm is that of the vector that it adds: in every form, at any size, however much cancels."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedprivacy.gradients import pieces
from fedprivacy.gradients.pieces import Gram, Outer, Rewritten, TableRows, Written, join_pieces, over_positions
from tests.gradients.oracle import check_every_clipping, no_program

ALL = 2**62


def alone(piece, record, scale, shape):
    """The vector that one record adds."""
    weights, out = torch.zeros(len(piece.norms())), torch.zeros(shape)
    weights[record] = scale
    piece.add_weighted_sum(weights, out)
    return out.double()


def check(piece, gradients):
    """Against the gradients [batch, *parameter] in float64."""
    norms, shape = gradients.flatten(1).norm(dim=1), gradients.shape[1:]
    assert torch.allclose(piece.norms().double(), norms, rtol=1e-5)
    assert torch.allclose(piece.gradients().double(), gradients, rtol=1e-5, atol=1e-5)
    weights, out = torch.randn(len(gradients)), torch.ones(shape)
    piece.add_weighted_sum(weights, out)
    expected = 1 + torch.einsum("b,b...->...", weights.double(), gradients)
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


@given(records=st.integers(1, 5), positions=st.integers(1, 6), table=st.integers(1, 4))
def test_rows_that_a_record_touches_twice_are_added_first(records, positions, table):
    torch.manual_seed(records + 10 * positions)
    ids, grads = torch.randint(table, (records, positions)), torch.randn(records, positions, 3)
    gradients = torch.zeros(records, table, 3, dtype=torch.float64)
    for record in range(records):
        gradients[record].index_add_(0, ids[record], grads[record].double())
    check(TableRows(ids, grads, torch.Size([table, 3])), gradients)


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
    assert (piece.norms() >= exact * (1 - 1e-5)).all(), "or a record counts for more than C"
    assert (piece.norms() <= exact * (1.2 if spread == 1e-4 else 1 + 1e-4)).all()
    scales = clipping_norm / piece.norms()
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
        assert piece.norms()[0] >= summed * (1 - 1e-5)


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
