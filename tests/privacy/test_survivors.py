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
from fedprivacy.gradients.pieces import Part, Piece, Placed, Sums
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from tests.gradients.oracle import cross_entropy

LARGE = torch.Size([4097])
ROUNDING = 2.0**-24
"""Of one addition in float32, relative."""


@dataclass
class Blocks:
    """The sizes of the products that made each block; one begins where nothing has been added yet."""

    products: list[list[int]] = field(default_factory=list)

    def note(self, out, records):
        assert out.dtype == torch.float32
        if not out.any():
            self.products.append([])
        self.products[-1].append(records)


class Noted(Piece):
    """Gradients that are their records' weights, in the first entry alone."""

    def __init__(self, rows, blocks=None):
        self._rows, self._blocks = rows, blocks

    def factors(self):
        return (torch.ones(self._rows),)

    @property
    def sources(self):
        return self.factors()

    def gradients(self):
        raise NotImplementedError

    def kept_by(self, keep):
        return self

    def add_weighted_sum(self, weights, out, start=0, counted=None):
        if self._blocks is not None:
            self._blocks.note(out, len(weights))
        out.view(-1)[0] += weights.sum()


def added(sums, rows, weight, blocks=None):
    sums.add([Placed(Part(0), Noted(rows, blocks))], torch.full((1, rows), weight, dtype=torch.float64), [0])


def blocks_of(records, sizes):
    """How a batch of so many records is summed, in parts of these sizes."""
    blocks, sums = Blocks(), Sums([LARGE], torch.float32, torch.device("cpu"), sizes[0])
    for part in cut(records, sizes):
        added(sums, part.size, 1.0, blocks)
    assert sums.total()[0] == sum(part.size for part in cut(records, sizes))
    return blocks


SIZES = {str(largest): sizes_up_to(largest) for largest in (1, 16, 256)}
SIZES |= {"256 and small": with_small(sizes_up_to(256))}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_allowance_covers_the_rounding_of_every_block_that_is_made(sizes):
    """Catches: longer products, more of them in a block, blocks that never end. Two blocks change, each on both sides.

    A product of m records, each no longer than C, is rounded at most m - 1 times, then as often as products follow it.
    """
    for block in (block for records in (40, 1000, 1100) for block in blocks_of(records, sizes).products):
        rounded = max(block) - 1 + len(block)
        assert 4 * rounded * ROUNDING * sum(block) <= SUM_ALLOWANCE


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_part_that_is_left_out_takes_the_room_of_one_that_counts_nothing(place):
    """Catches: a part that is skipped and takes no places, or leaves what the block before it held."""
    generator = torch.Generator().manual_seed(place)
    weights = torch.rand(8, generator=generator, dtype=torch.float64)
    skipped, zeros = (Sums([LARGE], torch.float32, torch.device("cpu"), 32) for _ in range(2))
    for number, weight in enumerate(weights.tolist()):
        if number == place:
            skipped.skip(32)
            added(zeros, 32, 0.0)
        else:
            added(skipped, 32, weight)
            added(zeros, 32, weight)
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
