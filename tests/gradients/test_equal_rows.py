"""Products that treat one row apart are noticed, and each row is multiplied by itself there."""

import logging
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import GradientEngine, methods, per_record, products
from fedprivacy.gradients.clipping import FlatClipping
from fedprivacy.gradients.invariance import EqualRowsStayEqual, sizes_that_agree
from fedprivacy.gradients.methods import SingleRows, warn_of
from fedprivacy.gradients.per_record import RecordScores
from fedprivacy.gradients.products import one_row_at_a_time
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.selfcheck import PlaceError
from fedprivacy.gradients.stack_check import admitted_stack
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.gradients.watch import Watch
from tests.gradients.oracle import cross_entropy

ROWS = 64


class InAnotherOrder(Watch):
    """A processor whose products add up one of the rows along an axis from the back."""

    def __init__(self, place=-1, axis=0):
        super().__init__()
        self._place, self._axis = place, axis

    def _run(self, func, args, kwargs):
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            *base, rows, matrix = args
            other = func(*base, rows.flip(-1).contiguous(), matrix.flip(-2).contiguous())
            result.select(self._axis, self._place).copy_(other.select(self._axis, self._place))
        if name in ("mv", "addmv"):
            result[self._place] = func(*args[:-2], args[-2].flip(-1).contiguous(), args[-1].flip(0))[self._place]
        if name == "convolution":
            inputs, weight, *others = args
            result[self._place] = func(inputs.flip(1).contiguous(), weight.flip(1).contiguous(), *others)[self._place]
        return result


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def in_colours(rows):
    return rows.view(ROWS, 1, 4, -1).expand(-1, 3, -1, -1)


def convolved(rows):
    return functional.conv2d(rows.view(ROWS, -1, 2, 2), draw(1, rows.shape[1] // 4, 2, 2))


PRODUCTS = {
    "one number": lambda rows: rows @ draw(rows.shape[1], 1),
    "many numbers": lambda rows: functional.linear(rows, draw(20, rows.shape[1]), draw(20)),
    "a vector": lambda rows: torch.mv(rows, draw(rows.shape[1])),
    "one row each": lambda rows: torch.bmm(rows.unsqueeze(1), draw(rows.shape[1], 2).expand(ROWS, -1, -1)),
    "of records": lambda rows: torch.bmm(rows.view(ROWS, 2, -1), rows.view(ROWS, 2, -1).transpose(1, 2)),
    "a convolution": convolved,
    "a grey image in colours": lambda rows: functional.conv2d(in_colours(rows), draw(4, 3, 2, 2)),
}


@pytest.mark.parametrize("inner", [16, 64])
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_one_row_that_is_added_up_in_another_order_is_refused(product, inner):
    rows = draw(ROWS, inner)
    with one_row_at_a_time(), EqualRowsStayEqual(ROWS):  # as a kernel that treats all alike
        torch.bmm(rows.unsqueeze(1), draw(inner, 2).expand(ROWS, -1, -1))
    for place in (0, 17, ROWS - 1):
        with pytest.raises(PlaceError, match="equal rows"), InAnotherOrder(place), EqualRowsStayEqual(ROWS):
            product(rows)


EXPANDED = {"whole": (ROWS, -1), "one number": (ROWS, 1), "one row": (1, -1), "one number for all": (1, 1)}


@pytest.mark.parametrize("inner", [16, 65])
@pytest.mark.parametrize("kept", EXPANDED.values(), ids=EXPANDED)
def test_it_is_noticed_in_half_precision_where_a_last_bit_is_mostly_rounded_away(kept, inner):
    """Rows may be expanded, as the gradient of a sum is."""
    rows = draw(kept[0], inner if kept[1] < 0 else 1, dtype=torch.bfloat16).expand(ROWS, inner)
    matrix = draw(inner, 8, dtype=torch.bfloat16)

    class Rounded(InAnotherOrder):
        """The last row is added up in float32 from the back, and rounded like the others."""

        def _run(self, func, args, kwargs):
            result = func(*args, **kwargs)
            if func.overloadpacket.__name__ == "mm":
                backwards = torch.zeros(result.shape[1])
                for row, numbers in zip(args[0][-1].flip(0).float(), args[1].flip(0).float(), strict=True):
                    backwards += row * numbers
                result[-1] = backwards.to(result.dtype)
            return result

    with Rounded():
        assert torch.equal((rows @ matrix)[:-1], (rows.clone() @ matrix)[:-1])
    with pytest.raises(PlaceError), Rounded(), EqualRowsStayEqual(ROWS):
        rows @ matrix


def hinge(outputs, targets):
    """A loss whose gradient hides last bits: it has one slope, and is flat elsewhere."""
    return functional.relu(1.0 - outputs[:, 0] * (2 * targets - 1))


class Seldom(InAnotherOrder):
    """Such a processor, whose other order shows in one sum of five."""

    def _run(self, func, args, kwargs):
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ != "mm" or result.view(torch.int32).flatten()[0] % 5:
            return result
        return super()._run(func, args, kwargs)


def test_an_order_that_seldom_shows_is_noticed():
    for number in range(10):
        with pytest.raises(PlaceError), Seldom(), EqualRowsStayEqual(ROWS):
            draw(ROWS, 16 + 4 * number) @ draw(16 + 4 * number, 1)


class InPartsOf(InAnotherOrder):
    """Such a processor for parts of one size alone."""

    def __init__(self, size):
        super().__init__()
        self._size = size

    def _run(self, func, args, kwargs):
        result = func(*args, **kwargs)
        rows = result.shape[:1] if isinstance(result, torch.Tensor) else ()
        return super()._run(func, args, kwargs) if rows == (self._size,) else result


@pytest.mark.usefixtures("rows_alike")
def test_a_product_that_a_flat_loss_hides_rules_out_the_size_in_which_it_is():
    """Once, vmap was so admitted on AVX2, and a server could make one record count for 1.16 C."""
    torch.manual_seed(0)
    net, probe, sizes = nn.Linear(6, 1), (torch.rand(3, 6), torch.tensor([0, 1, 0])), (128, 64, 32)
    assert sizes_that_agree(Program(net, hinge), net, probe, sizes, 2**30) == sizes
    with InPartsOf(64):
        assert sizes_that_agree(Program(net, hinge), net, probe, sizes, 2**30) == (128, 32)
    with InPartsOf(128), pytest.raises(PlaceError, match="equal rows"):
        sizes_that_agree(Program(net, hinge), net, probe, sizes, 2**30)


@pytest.mark.parametrize(("place", "axis"), [(-1, 0), (3, 0), (15, 1), (0, 1)])
@pytest.mark.parametrize("loss", [cross_entropy, hinge])
def test_a_stack_whose_products_treat_a_slot_or_a_row_apart_is_not_used(loss, place, axis):
    kinds = torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    assert admitted_stack(model, loss, FlatClipping(), *kinds) is not None
    with undisturbed, InAnotherOrder(place, axis):
        assert admitted_stack(model, loss, FlatClipping(), *kinds) is None


BATCH = torch.randn(70, 12, generator=torch.Generator().manual_seed(0)), torch.arange(70) % 3


def perceptron():
    return nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.fixture
def rows_differ(monkeypatch):
    """A processor whose products of many rows do not treat these alike."""

    def checked(method, *others):
        if not isinstance(method, SingleRows):
            raise PlaceError(f"{method.name} computes a record by its place in the batch")
        return sizes_that_agree(method, *others)

    monkeypatch.setattr(methods, "sizes_that_agree", checked)


@pytest.mark.parametrize("around", [nullcontext, products.one_row_at_a_time])
@pytest.mark.parametrize(("d", "p"), [(1, 1), (7, 5), (30, 2), (16, 10), (32, 16), (33, 48)])
def test_products_are_products(d, p, around):
    torch.manual_seed(0)
    x, w, b = torch.randn(9, d, requires_grad=True), torch.randn(p, d), torch.randn(p)
    plainly, g = nn.functional.linear(x, w, b), torch.randn(9, p)
    with around():
        ours = products.linear(x, w, b)
        (back,) = torch.autograd.grad(ours, x, g)
        positions = products.linear(x.detach().view(3, 3, d), w)
        times, plus = products.times(g, w), products.plus_product(b.expand(9, p), x, w.t())
        products.addmm(plus.detach(), x.detach(), w.t(), out=(out := torch.empty(9, p)))
    assert torch.allclose(ours, plainly, atol=1e-5)
    assert torch.allclose(back, torch.autograd.grad(plainly, x, g)[0], atol=1e-5)
    assert torch.allclose(positions, x.view(3, 3, d) @ w.t(), atol=1e-5)
    assert torch.allclose(times, g @ w, atol=1e-5)
    assert torch.allclose(plus, b + x @ w.t(), atol=1e-5)
    assert torch.allclose(out, plus + x @ w.t(), atol=1e-5)
    left, right = torch.randn(4, 3, p), torch.randn(4, 3, d)
    assert torch.allclose(products.summed_outer(left, right), left.transpose(1, 2) @ right, atol=1e-5)


def test_why_is_told_once_with_what_helps(rows_differ, caplog):
    warn_of.cache_clear()
    caplog.set_level(logging.WARNING, "fedprivacy.gradients")
    engine = GradientEngine(perceptron(), cross_entropy)
    engine.prepare(*BATCH)
    assert engine.refused == ("program: computes a record by its place in the batch",)
    for _ in range(2):
        warn_of(engine.method, engine.obstacle)
    (record,) = caplog.records
    assert "slow (program, one row at a time): a step takes 1 to 6 times" in record.message
    assert "do not treat all rows alike" in record.message and engine.obstacle.remedy in record.message


class Products(Watch):
    """Notes of how many rows the matrices of products are."""

    def __init__(self):
        super().__init__()
        self.rows = set()

    def _run(self, func, args, kwargs):
        if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            self.rows.add(args[-2].shape[-2])
        return func(*args, **kwargs)


def test_scores_are_computed_in_company_too(monkeypatch):
    """One record after the other would take as long as the loop."""

    refusals = iter([PlaceError("by its place")])  # of products of all rows, which are tried first

    def checked(*asked):
        for refusal in refusals:
            raise refusal
        return sizes_that_agree(*asked)

    monkeypatch.setattr(per_record, "sizes_that_agree", checked)
    torch.manual_seed(0)
    model, inputs, targets = perceptron(), *BATCH
    scores = RecordScores(model, cross_entropy, [cross_entropy], (inputs[:0], targets[:0]))
    assert scores.rows > 1
    expected = cross_entropy(model(inputs), targets).detach().double().unsqueeze(1)
    with undisturbed, Products() as seen:
        torch.testing.assert_close(scores(inputs, targets), expected, rtol=1e-5, atol=1e-5)
    assert seen.rows == {1}
    assert torch.equal(scores(inputs[7:8], targets[7:8]), scores(inputs, targets)[7:8])
