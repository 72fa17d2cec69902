"""Sums stay as near to the exact ones as the mechanism says, for any number of records in any arrangement."""

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.pieces import BLOCK, STRETCH, Outer, Part, Sized, Sums, Written
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE, SUM_ALLOWANCE
from fedprivacy.mechanisms.lattice_noise import LATTICE_ALLOWANCE

LARGE = 4097
"""Entries of a parameter that is summed in float32 blocks."""

PART = 256
"""Records that are added at a time."""

UNIT = 2.0**-24
"""Relative rounding of one operation in float32."""


def summed(values):
    """The sum [LARGE] of vectors of equal entries, one for each value, in parts of 256."""
    sums = Sums([torch.Size([LARGE])], torch.float32, torch.device("cpu"), PART)
    for some in values.split(PART):
        rows = torch.zeros(PART).index_copy_(0, torch.arange(len(some)), some)
        piece = Written(rows.unsqueeze(1).expand(PART, LARGE))
        sums.add([Sized(Part(0), piece, rows)], [torch.ones(PART, dtype=torch.float64)])
    return sums.total()


def length(vector):
    """The norm, in that of a vector of ones: as long as a record of value 1."""
    return vector.norm().item() / LARGE**0.5


def stray(values):
    """The distance from the exact sum."""
    return length(summed(values) - values.double().sum())


def hostile_values(count, seed):
    """Numbers from 0.5 to 1, which add up without cancelling: of many blocks the one that rounds worst, repeated."""
    generator = torch.Generator().manual_seed(seed)
    blocks = 0.5 + 0.5 * torch.rand(200, BLOCK, generator=generator)
    worst = torch.tensor([stray(block) for block in blocks]).argmax()
    return blocks[worst].repeat(-(-count // BLOCK))[:count]


@pytest.mark.parametrize("records", [1000, 16_384, 65_536])
def test_neighbours_differ_by_c_and_the_allowance_in_the_worst_arrangement(records):
    """The last record takes the place of the one that leaves, as in the guarantee."""
    values = hostile_values(records, seed=0)
    for place in (0, records // 2):
        without = values.clone()
        without[place] = values[-1]
        assert length(summed(values) - summed(without[:-1]) - values[place].double()) <= SUM_ALLOWANCE


@pytest.mark.soak
def test_a_million_records_are_within_the_allowance():
    engine = GradientEngine(nn.Linear(1, 1, bias=False), lambda outputs, _: outputs[:, 0])
    rows, targets = hostile_values(1_000_000, seed=1)[:, None].contiguous(), torch.zeros(1_000_000)
    rows[0] = 2.0  # clipped to 1
    without = rows.clone()
    without[0] = rows[-1]
    change = engine.clipped_sum(rows, targets, 1.0) - engine.clipped_sum(without[:-1], targets[:-1], 1.0)
    assert abs(change.item() - 1.0) <= SUM_ALLOWANCE


def test_small_parameters_are_summed_in_float64():
    sums = Sums([torch.Size([3, 2])], torch.float32, torch.device("cpu"), 16)
    inputs, gradients = torch.full((16, 2), 1.0), torch.full((16, 3), 1.0)
    gradients[0] = 2.0**24
    piece = Outer(inputs, gradients)
    sums.add([Sized(Part(0), piece, piece.norms())], [torch.ones(16, dtype=torch.float64)])
    assert torch.equal(sums.total(), torch.full((6,), 2.0**24 + 15, dtype=torch.float64))


def test_the_allowance_covers_what_the_proof_adds_up():
    blocks, norms = 4 * (STRETCH + 3) * UNIT * BLOCK, 2e-5
    most_records = 2.0**24
    float64 = most_records**2 / BLOCK * 2.0**-53
    assert (1 + norms) * (1 + blocks) - 1 + float64 <= SUM_ALLOWANCE
    assert SUM_ALLOWANCE + LATTICE_ALLOWANCE == ROUNDING_ALLOWANCE <= 0.0015
