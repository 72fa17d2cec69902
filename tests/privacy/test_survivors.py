"""Small bugs that survived when every one was planted (`docs/explanation/testing.md`), seen by what they would break.

How a clipped sum rounds, told by a method that notes every product that it is asked for: how many records it adds at
once, and in which type.
"""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, methods
from fedprivacy.gradients.layout import Layout, cut, sizes_up_to, with_small
from fedprivacy.gradients.pieces import STRETCH, Part, Piece, Placed, Sums
from fedprivacy.gradients.products import as_on_gpu
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from tests.gradients.oracle import cross_entropy

LARGE = torch.Size([4097])
ROUNDING = 2.0**-24
"""Of one addition in float32, relative."""


@dataclass
class Blocks:
    """The sizes of the products that made each block; one begins where nothing has been added yet."""

    products: list[list[int]] = field(default_factory=list)
    lanes: dict[int, list[int]] = field(default_factory=dict)

    def note(self, out, weights):
        assert out.dtype == torch.float32
        for lane, (own, some) in enumerate(zip(out, weights, strict=True) if weights.dim() == 2 else [(out, weights)]):
            if not own.any():
                self.lanes[lane] = []
                self.products.append(self.lanes[lane])
            self.lanes[lane].append(len(some))


class Noted(Piece):
    """Gradients that are their records' weights, in the first entry alone; what is added is noted before."""

    def __init__(self, rows, note):
        self._rows, self._note = rows, note

    def factors(self):
        return (torch.ones(self._rows),)

    @property
    def sources(self):
        return self.factors()

    def gradients(self):
        raise NotImplementedError

    def kept_by(self, keep):
        return self

    def add_weighted_sum(self, weights, out, start=0):
        self._note(out, weights)
        out.view(*weights.shape[:-1], -1)[..., 0] += weights.sum(-1)


def added(sums, weights, note=lambda _out, _weights: None):
    sums.add([Placed(Part(0), Noted(len(weights), note))], weights.double().unsqueeze(0), [0])


def blocks_of(records, sizes):
    """How a batch of so many records is summed, in parts of these sizes."""
    blocks, sums = Blocks(), Sums([LARGE], torch.float32, torch.device("cpu"), sizes[0])
    for part in cut(records, sizes):
        added(sums, torch.ones(part.size), blocks.note)
    assert sums.total()[0] == sum(part.size for part in cut(records, sizes))
    return blocks


SIZES = {str(largest): sizes_up_to(largest) for largest in (1, 16, 256)}
SIZES |= {"256 and small": with_small(sizes_up_to(256))}


ON_A_GPU = [(8,), (32,), (96,), (256,), (1024,)]
"""Sizes of a GPU's parts, one at a time."""


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_allowance_covers_the_rounding_of_every_block_that_is_made(sizes):
    """Catches: longer products, more of them in a block, blocks that never end. Two blocks change, each on both sides.

    A product of m records, each no longer than C, is rounded at most m - 1 times, then as often as products follow it.
    """
    for block in (block for records in (40, 1000, 1100) for block in blocks_of(records, sizes).products):
        rounded = max(block) - 1 + len(block)
        assert 4 * rounded * ROUNDING * sum(block) <= SUM_ALLOWANCE


@pytest.mark.parametrize("sizes", ON_A_GPU, ids=str)
def test_a_block_on_a_gpu_is_one_stretch_in_a_lane_of_its_own(sizes):
    """Catches: a lane that is used twice before float64 takes over, or is not cleared."""
    with as_on_gpu():
        products = [block for records in (40, 1100) for block in blocks_of(records, sizes).products]
    assert max(map(sum, products)) == STRETCH


@pytest.mark.parametrize(
    ("parameters", "at_once"),
    [(2**23, [32]), (2**23 + 1, [31, 1]), (2**24, [16, 16]), (2**27, [2] * 16), (2**28 + 1, [1] * 32)],
)
def test_a_gpu_adds_fewer_stretches_at_once_where_a_gigabyte_holds_no_more_lanes(monkeypatch, parameters, at_once):
    """And all begin at zero, so that a block is one stretch. (A device without numbers has room for any model.)"""
    cleared, lanes = [], []
    monkeypatch.setattr(torch.Tensor, "zero_", lambda block: cleared.append(block) or block)
    with as_on_gpu():
        sums = Sums([torch.Size([parameters])], torch.float32, torch.device("meta"), 1024)
        for _ in range(2):
            added(sums, torch.ones(1024, device="meta"), lambda _, weights: lanes.append(weights.numel() // STRETCH))
    assert lanes == 2 * at_once and len(cleared) == len(lanes)


def test_lanes_are_added_in_float64():
    """Of each part on a GPU, the first stretch is 2^24 long, and float32 would lose the others' ones."""
    weights = torch.zeros(8, STRETCH)
    weights[:, 0] = 1.0
    weights[0, 0] = 2.0**24
    with as_on_gpu():
        sums = Sums([LARGE], torch.float32, torch.device("cpu"), 8 * STRETCH)
        for _ in range(2):
            added(sums, weights.flatten())
    assert sums.total()[0] == 2 * (2**24 + 7)


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_part_that_is_left_out_takes_the_room_of_one_that_counts_nothing(place):
    """Catches: a part that is skipped and takes no places, or leaves what the block before it held."""
    generator = torch.Generator().manual_seed(place)
    weights = torch.rand(8, generator=generator, dtype=torch.float64)
    skipped, zeros = (Sums([LARGE], torch.float32, torch.device("cpu"), 32) for _ in range(2))
    for number, weight in enumerate(weights):
        if number == place:
            skipped.skip(32)
            added(zeros, torch.zeros(32))
        else:
            added(skipped, weight.repeat(32))
            added(zeros, weight.repeat(32))
    assert torch.equal(skipped.total(), zeros.total())


def test_the_sizes_that_are_tried_are_those_that_several_views_take(monkeypatch):
    """Catches: means that are chosen for one view of each record, in sizes that are then not used."""
    tried = []

    def agreeing(method, _model, probe, sizes, kept):
        assert probe[0].shape[1:] == (3, 6) and len(method.pieces(*probe, kept)[0].piece.sources[0]) == len(probe[0])
        tried.extend(sizes)
        return tuple(sizes)

    monkeypatch.setattr(methods, "sizes_that_agree", agreeing)
    engine = GradientEngine(nn.Linear(6, 3), cross_entropy, layout=Layout(views=3))
    engine.prepare(torch.rand(2, 6), torch.tensor([0, 1]))
    assert tuple(tried) == engine.sizes
