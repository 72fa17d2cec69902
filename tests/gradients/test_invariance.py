"""Methods whose bits depend on a record's place, its company or their number are not used."""

import math
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, methods
from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.layout import cut, filled, plain, sizes_up_to, with_small
from fedprivacy.gradients.pieces import Part, Sized, Written
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.selfcheck import DisagreementError
from fedprivacy.gradients.surroundings import computing_with
from tests.gradients.oracle import cross_entropy

pytestmark = pytest.mark.usefixtures("rows_alike")
SIZES = (128, 64, 32)
KEPT = 2**30


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


PROBE = (torch.rand(3, 6), torch.tensor([0, 1, 2]))


class Leaning:
    """A method that computes as it should, but for the last bit of what `lean` says."""

    name, held_bytes = "leaning", 0

    def __init__(self, model, lean):
        self._means, self._lean = Program(model, cross_entropy), lean

    def pieces(self, inputs, targets, kept_bytes):
        leaning = self._lean(inputs).view(-1, *[1] * 2)
        pieces = []
        for sized in self._means.pieces(inputs, targets, kept_bytes):
            rows = sized.piece.gradients()
            up = torch.nextafter(rows, torch.full_like(rows, math.inf))
            rows = torch.where(leaning if rows.dim() == 3 else leaning[..., 0], up, rows)
            pieces.append(Sized(Part(sized.part.place), Written(rows), Written(rows).norms()))
        return pieces


def nobody(inputs):
    return torch.zeros(len(inputs), dtype=torch.bool)


def agreeing(lean):
    net = model()
    return sizes_that_agree(Leaning(net, lean), net, PROBE, SIZES, KEPT)


@pytest.mark.parametrize("place", [0, 1, 31, 63])
def test_one_last_bit_at_one_place_is_enough_to_be_refused(place):
    with pytest.raises(DisagreementError, match="place"):
        agreeing(lambda inputs: torch.arange(len(inputs)) == place)


@pytest.mark.parametrize(
    "strange",
    [torch.isnan, torch.isinf, lambda x: x.abs() > 1e20, lambda x: (x != 0) & (x.abs() < 1e-38)],
    ids=["nan", "infinite", "huge", "subnormal"],
)
def test_a_last_bit_that_depends_on_extreme_company_is_enough(strange):
    """Vectors may take the long way round if one of their numbers is huge."""

    def beside(inputs):
        odd = strange(inputs).flatten(1).any(1)
        return (odd.roll(1) | odd.roll(-1)) & ~odd

    with pytest.raises(DisagreementError, match="place"):
        agreeing(beside)


def first_in_a_part_of(size, start):
    """Says of a part's first record whether the part has so many and the record was at this place of all."""
    records = []

    def first_of_a_window(inputs):
        if len(inputs) == 128 and not records:
            records.append(inputs[start])
        found = torch.zeros(len(inputs), dtype=torch.bool)
        if len(inputs) == size:
            found[0] = torch.equal(inputs[0], records[0])
        return found

    return first_of_a_window


def test_sizes_in_which_a_last_bit_differs_are_not_used():
    """A bit differs in every record's row, or in one."""
    assert agreeing(nobody) == SIZES
    assert agreeing(lambda inputs: torch.full((len(inputs),), len(inputs) == 32)) == (128, 64)
    assert agreeing(lambda inputs: torch.full((len(inputs),), len(inputs) == 128)) == (128,)
    for start in (0, 32, 96):
        assert agreeing(first_in_a_part_of(32, start)) == (128, 64)


@pytest.mark.parametrize("start", [0, 12, 24])
def test_one_last_bit_of_one_record_in_a_small_part_is_enough(start):
    """The last part of 12 of the first 32 records has the first four once more."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
    method = Leaning(net, first_in_a_part_of(12, start))
    assert sizes_that_agree(method, net, PROBE, (128, 16, 12, 8), KEPT) == (128, 16, 8)


@pytest.mark.parametrize(("width", "rows", "fits"), [(16, 2, True), (16, 16, True), (7, 8, False), (7, 16, False)])
def test_parts_that_leave_elements_over_for_other_code_are_not_used(width, rows, fits):
    """Seven units in 16 rows are 112 numbers: three vectors of 32, and 16 that are computed one by one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, width), nn.Sigmoid(), nn.Linear(width, 16))
    engine = GradientEngine(net, cross_entropy, max_memory=4096)
    engine.prepare(*PROBE)
    assert engine.sizes[0] in ({1, 2, 4, 8, 16} if fits else {1})
    with nullcontext() if fits else pytest.raises(DisagreementError, match="over"):
        assert sizes_that_agree(Program(net, cross_entropy), net, PROBE, (rows,), KEPT) == (rows,)


@pytest.mark.parametrize(("units", "taken"), [(16, 8), (10, 16), (7, 32)])
def test_a_large_model_is_computed_in_the_smallest_parts_that_leave_nothing_over(units, taken, monkeypatch):
    """Eight rows of ten units leave sixteen numbers over, and sixteen rows none; so no row is computed alone."""
    torch.manual_seed(0)
    monkeypatch.setattr(methods, "_fastest", lambda *_, **__: 8)
    engine = GradientEngine(nn.Sequential(nn.Linear(6, units), nn.Sigmoid(), nn.Linear(units, 3)), cross_entropy)
    engine.prepare(*PROBE)
    assert engine.sizes == (taken,)


def test_threads_that_share_a_tensor_unevenly_are_noticed(monkeypatch):
    net = nn.Sequential(nn.Linear(6, 301), nn.Sigmoid(), nn.Linear(301, 3))
    assert sizes_that_agree(Program(net, cross_entropy), net, PROBE, (256,), KEPT) == (256,)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with pytest.raises(DisagreementError, match="over"):
        sizes_that_agree(Program(net, cross_entropy), net, PROBE, (256,), KEPT)


def test_means_that_show_no_gradient_are_not_judged_by_nothing():
    net = nn.Linear(6, 1)
    with pytest.raises(DisagreementError, match="no gradient"):
        sizes_that_agree(Program(net, cross_entropy), net, (PROBE[0], torch.zeros(3).long()), SIZES, KEPT)


class Centred(nn.Module):
    """Subtracts the batch's mean once an input exceeds 2: mixes records, and only for values that are rare."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(torch.where(x.max() > 2, x - x.mean(0), x))


def test_a_model_that_mixes_records_for_large_values_is_shown_each_record_alone():
    engine = GradientEngine(Centred(), cross_entropy)
    engine.prepare(*PROBE)
    assert engine.method in ("vmap", "loop")


def test_the_means_are_chosen_anew_for_another_number_of_threads():
    engine = GradientEngine(model(), cross_entropy)
    with mock.patch("fedprivacy.gradients.engine.admit_method", wraps=methods.admit_method) as choose:
        for more, choices in ((0, 1), (0, 1), (1, 2)):
            with computing_with(torch.get_num_threads() + more):
                engine.prepare(*PROBE)
            assert choose.call_count == choices


def test_the_server_s_parameters_have_no_say_in_the_choice():
    """Under them all units may be dead on made-up records, and alive on real ones."""
    for fill in (0.0, 1e30, math.nan):
        net = model()
        engine = GradientEngine(net, cross_entropy)
        for parameter in net.parameters():
            nn.init.constant_(parameter, fill)
        engine.prepare(*PROBE)
        assert engine.method == "program"
        assert all(torch.equal(p.nan_to_num(7.0), torch.full_like(p, fill).nan_to_num(7.0)) for p in net.parameters())


# Parts


@pytest.mark.parametrize("sizes", [(1,), (8,), (16,), (64, 32), sizes_up_to(256), with_small((32,))])
def test_parts_cover_every_record_once_and_waste_little_or_a_turn(sizes):
    for records in (0, 1, 15, 16, 17, 64, 65, 200, 230, 255, 256, 257, 1000):
        parts = list(cut(records, sizes))
        assert [place for part in parts for place in range(part.start, part.stop)] == list(range(records))
        assert all(part.size in sizes and part.stop - part.start <= part.size for part in parts)
        wasted = sum(part.size for part in parts) - records
        assert wasted <= max(0.25 * records + 48, sizes[-1])
        assert all(part.size < 2 * (records - part.start) or part.size == sizes[-1] for part in parts)


def test_rows_are_laid_out_as_new_ones_are():
    wanted = torch.randn(16, 1, 5, 1)
    odd = torch.randn(5, 1, 17, 1).permute(2, 1, 0, 3)[1:]
    for rows in (odd, wanted[:, :, ::2], filled(wanted[3:10], 16), wanted.to(memory_format=torch.channels_last)):
        laid = plain(rows)
        assert torch.equal(laid, rows)
        assert laid.stride() == torch.empty(laid.shape).stride()
        assert laid.data_ptr() % 64 == 0
