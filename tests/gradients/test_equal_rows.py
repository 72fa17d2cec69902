"""A product that adds up one row in another order is noticed, whatever a model would make of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients.clipping import FlatClipping
from fedprivacy.gradients.invariance import EqualRowsStayEqual, sizes_that_agree
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
