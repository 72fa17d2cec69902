"""Small bugs that survived when every one was planted (`docs/explanation/testing.md`), seen by what they would break.

How a clipped sum rounds, told by a method that notes every product that it is asked for: how many records it adds at
once, in which type, and into a block of which places.
"""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, PerLayerClipping, methods
from fedprivacy.gradients.layout import Layout, cut, sizes_up_to, with_small
from fedprivacy.gradients.pieces import Part, Piece, Sized, Sums
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from tests.gradients.oracle import cross_entropy

LARGE = torch.Size([4097])
ROUNDING = 2.0**-24
"""Of one addition in float32, relative."""


@dataclass
class Blocks:
    """The products that made each block, as lists of places; one begins where nothing has been added yet."""

    products: list[list[range]] = field(default_factory=list)

    def note(self, out, places):
        assert out.dtype == torch.float32
        if not out.any():
            self.products.append([])
        self.products[-1].append(places)

    def places(self):
        return [[place for product in block for place in product] for block in self.products]


class Noted(Piece):
    """Gradients that are their records' weights, in the first entry alone."""

    def __init__(self, first, rows, blocks=None):
        self._first, self._rows, self._blocks = first, rows, blocks

    def norms(self):
        return torch.ones(self._rows)

    @property
    def sources(self):
        return (self.norms(),)

    def gradients(self):
        raise NotImplementedError

    def add_weighted_sum(self, weights, out, start=0):
        if self._blocks is not None:
            self._blocks.note(out, range(self._first + start, self._first + start + len(weights)))
        out.view(-1)[0] += weights.sum()


def added(sums, first, rows, weight, blocks=None):
    piece = Noted(first, rows, blocks)
    sums.add([Sized(Part(0), piece, piece.norms())], [torch.full((rows,), weight, dtype=torch.float64)])


def blocks_of(records, sizes):
    """How a batch of so many records is summed, in parts of these sizes."""
    blocks, sums = Blocks(), Sums([LARGE], torch.float32, torch.device("cpu"), sizes[0])
    for part in cut(records, sizes):
        added(sums, part.start, part.size, 1.0, blocks)
    assert sums.total()[0] == sum(part.size for part in cut(records, sizes))
    return blocks


SIZES = {str(largest): sizes_up_to(largest) for largest in (1, 2, 4, 8, 16, 64, 256)}
SIZES |= {"32 and small": with_small((32,)), "256 and small": with_small(sizes_up_to(256))}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_allowance_covers_the_rounding_of_every_block_that_is_made(sizes):
    """Catches: longer products, more of them in a block, blocks that never end. Two blocks change, each on both sides.

    A product of m records, each no longer than C, is rounded at most m - 1 times, then as often as products follow it.
    """
    for block in (block for records in (40, 1000, 1100) for block in blocks_of(records, sizes).products):
        rounded = max(len(product) for product in block) - 1 + len(block)
        together = sum(len(product) for product in block)
        assert 4 * rounded * ROUNDING * together <= SUM_ALLOWANCE


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_record_s_block_is_known_from_its_place_however_many_there_are(sizes):
    """Catches: blocks by part, or by how many came before. One record more would let all blocks round anew."""
    whole = blocks_of(1000, sizes).places()
    block_of = {place: number for number, block in enumerate(whole) for place in block}
    for records in (1, 15, 16, 17, 127, 128, 129, 255, 256, 257, 500, 750, 999):
        for number, block in enumerate(blocks_of(records, sizes).places()):
            assert {block_of[place] for place in block if place < 1000} == {number}


@pytest.mark.parametrize("shape", [LARGE, torch.Size([3])], ids=["large", "small"])
def test_the_sum_of_many_blocks_loses_nothing(shape):
    """Catches: blocks that are added up in float32: of 100,000 records it forgets whole ones.

    The weight has so few digits that 128 of them add up exactly in float32, and 1,000 times as many do not.
    """
    sums, weight, parts = Sums([shape], torch.float32, torch.device("cpu"), 256), 1.0 + 2.0**-16, 400
    for number in range(parts):
        added(sums, 256 * number, 256, weight)
    assert sums.total()[0].item() == parts * 256 * weight


@pytest.mark.parametrize("place", [0, 1, 3, 4, 7])
def test_a_part_that_is_left_out_takes_the_room_of_one_that_counts_nothing(place):
    """Catches: a part that is skipped and takes no places, or leaves what the block before it held."""
    generator = torch.Generator().manual_seed(place)
    weights = torch.rand(8, generator=generator, dtype=torch.float64)
    skipped, zeros = (Sums([LARGE], torch.float32, torch.device("cpu"), 32) for _ in range(2))
    for number, weight in enumerate(weights.tolist()):
        if number == place:
            skipped.skip(32)
            added(zeros, 32 * number, 32, 0.0)
        else:
            added(skipped, 32 * number, 32, weight)
            added(zeros, 32 * number, 32, weight)
    assert torch.equal(skipped.total(), zeros.total())


def test_a_part_whose_records_all_have_no_gradient_keeps_its_places(monkeypatch):
    """Catches: it takes none, so that one record that has a gradient lets all blocks behind it round anew."""
    monkeypatch.setattr(methods, "_fastest", lambda *_, **__: 32)
    torch.manual_seed(0)
    engine = GradientEngine(nn.Linear(LARGE.numel(), 1, bias=False), lambda outputs, _: outputs[:, 0])
    rows, targets = torch.rand(256, LARGE.numel()), torch.zeros(256)
    rows[32:64] = 0.0
    without = rows.clone()
    without[32:64] = torch.nan
    assert torch.equal(engine.clipped_sum(rows, targets, 1.0), engine.clipped_sum(without, targets, 1.0))


def test_the_sizes_that_are_tried_are_those_that_several_views_take(monkeypatch):
    """Catches: means that are chosen for one view of each record, in sizes that are then not used."""
    tried = []

    def agreeing(method, _model, probe, sizes, kept):
        assert probe[0].shape[1:] == (3, 6) and len(method.pieces(*probe, kept)[0].norms) == len(probe[0])
        tried.extend(sizes)
        return tuple(sizes)

    monkeypatch.setattr(methods, "sizes_that_agree", agreeing)
    engine = GradientEngine(nn.Linear(6, 3), cross_entropy, layout=Layout(views=3))
    engine.prepare(torch.rand(2, 6), torch.tensor([0, 1]))
    assert tuple(tried) == engine.sizes


# Records that cannot be computed


def some_engine():
    torch.manual_seed(0)
    return GradientEngine(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), cross_entropy)


NO_CLASS = 9
"""A target for which the loss raises."""


@pytest.mark.parametrize("bad", [[0, 16], list(range(17))])
@pytest.mark.parametrize("poison", ["inputs", "targets"])
def test_a_batch_is_summed_though_a_whole_part_of_it_cannot_be_computed(bad, poison):
    """Catches: a batch that fails, or a sum that is no number, because of who joined: that shows without any noise."""
    engine, records = some_engine(), bad[-1] + 1
    inputs, targets = torch.randn(records, 6), torch.randint(3, (records,))
    good = torch.tensor([record not in bad for record in range(records)])
    if poison == "inputs":
        inputs[~good] = torch.nan
    else:
        targets[~good] = NO_CLASS
    clipped = engine.clip(inputs, targets, 1.0)
    assert clipped.records == good.sum()
    assert torch.allclose(clipped.total, engine.clipped_sum(inputs[good], targets[good], 1.0), atol=1e-6)


# Parts


@pytest.mark.parametrize("targets", [0, NO_CLASS], ids=["all can be computed", "some cannot"])
def test_whatever_a_batch_holds_it_is_computed_in_sizes_that_agree_and_as_laid_out_there(monkeypatch, targets):
    """Catches: a part of another size or layout than those in which a record's place was found not to show."""
    engine, computed = some_engine(), []

    def admitted(*args, **kwargs):
        found = methods.admit_method(*args, **kwargs)

        def noted(inputs, some_targets, kept_bytes):
            computed.append((inputs, some_targets))
            return found.method.pieces(inputs, some_targets, kept_bytes)

        return replace(found, method=SimpleNamespace(pieces=noted))

    monkeypatch.setattr("fedprivacy.gradients.engine.admit_method", admitted)
    engine.prepare(torch.randn(1, 6), torch.zeros(1, dtype=torch.long))
    computed.clear()  # made-up ones
    for records in (1, 3, 15, 16, 17, 31, 40, 120, 257, 300):
        rows, labels = torch.randn(records + 1, 6)[1:], torch.randint(3, (records,))
        labels[records // 2] = targets
        engine.clip(rows, labels, 1.0)
    assert {len(inputs) for inputs, _ in computed} == {len(labels) for _, labels in computed}
    assert {len(inputs) for inputs, _ in computed} <= set(engine.sizes)
    assert all(tensor.is_contiguous() and tensor.data_ptr() % 64 == 0 for pair in computed for tensor in pair)


def test_rows_of_padding_are_no_records():
    """Catches: padding that counts, whose gradient nobody asked for."""
    engine, inputs, targets = some_engine(), torch.randn(6, 6), torch.randint(3, (6,))
    mask = torch.tensor([True, False, True, False, False, True])
    clipped = engine.clip(inputs, targets, 1.0, mask)
    assert clipped.records == 3
    assert torch.equal(clipped.total, engine.clipped_sum(inputs[mask], targets[mask], 1.0))


# What was chosen for other records

FLOATS, OTHERS = torch.rand(4, 2, 3), torch.rand(4, 2, 3)


def any_loss(outputs, targets):
    return outputs.square().flatten(1).sum(1) + 0.0 * targets.flatten(1).sum(1)


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (FLOATS.view(4, 1, 2, 3), OTHERS),
        (FLOATS, OTHERS.view(4, 6)),
        (FLOATS, OTHERS[:, :, :1]),
        (FLOATS, OTHERS.long()),
    ],
)
def test_means_are_judged_anew_on_records_of_another_shape_or_type(monkeypatch, inputs, targets):
    """Catches: sizes in which a record's place does not show, taken over for records for which they were not tried."""
    judged, admit = [], methods.admit_method
    monkeypatch.setattr(
        "fedprivacy.gradients.engine.admit_method",
        lambda model, loss, probe, **kwargs: judged.append(probe) or admit(model, loss, probe, **kwargs),
    )
    engine = GradientEngine(nn.Linear(3, 2), any_loss)
    for batch, times in (((FLOATS, OTHERS), 1), ((FLOATS[:1], OTHERS[:1]), 1), ((inputs, targets), 2)):
        engine.prepare(*batch)
        assert len(judged) == times


class TwoSides(nn.Module):
    """Two layers, whose gradients are the left and the right half of a record."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 1, bias=False), nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.left(x[:, :3]) + self.right(x[:, 3:])


@pytest.mark.parametrize("side", [slice(0, 3), slice(3, 6)], ids=["first layer", "second layer"])
def test_a_record_counts_nothing_where_any_layer_s_gradient_is_not_finite(side):
    """Catches: a look at the first layer alone. One record would then make the whole sum no number."""
    engine = GradientEngine(TwoSides(), lambda outputs, _: outputs[:, 0], PerLayerClipping())
    inputs, targets = torch.rand(4, 6), torch.zeros(4)
    inputs[1, side] = torch.inf
    kept = torch.tensor([0, 2, 3])
    clipped = engine.clip(inputs, targets, 1.0)
    assert clipped.records == 3
    assert torch.allclose(clipped.total, engine.clipped_sum(inputs[kept], targets[kept], 1.0), atol=1e-6)


def test_equal_views_of_a_record_count_like_the_record_whatever_the_shape_of_its_target():
    """Catches: views that are compared with another record's target."""
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(6, 2), torch.randn(5, 6), torch.randn(5, 2)

    def loss(outputs, wanted):
        return (outputs - wanted).square().sum(1)

    twice = GradientEngine(model, loss, layout=Layout(views=2)).clipped_sum(
        inputs.unsqueeze(1).expand(5, 2, 6), targets, 1.0
    )
    assert torch.allclose(twice, GradientEngine(model, loss).clipped_sum(inputs, targets, 1.0), atol=1e-5)
