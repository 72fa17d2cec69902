"""Neither a method nor a number of threads is used with which a record's bits depend on its place or company."""

import math
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, engine, methods
from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.layout import cut, filled, plain, sizes_up_to, with_small
from fedprivacy.gradients.pieces import Part, Placed, Written
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.selfcheck import DisagreementError
from fedprivacy.gradients.surroundings import by_speed, computing_with
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
        for placed in self._means.pieces(inputs, targets, kept_bytes):
            rows = placed.piece.gradients()
            up = torch.nextafter(rows, torch.full_like(rows, math.inf))
            rows = torch.where(leaning if rows.dim() == 3 else leaning[..., 0], up, rows)
            pieces.append(Placed(Part(placed.part.place), Written(rows)))
        return pieces


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


def test_means_that_show_no_gradient_are_not_judged_by_nothing():
    net = nn.Linear(6, 1)
    with pytest.raises(DisagreementError, match="no gradient"):
        sizes_that_agree(Program(net, cross_entropy), net, (PROBE[0], torch.zeros(3).long()), SIZES, KEPT)


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


# Threads

BATCH = torch.rand(150, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(150) % 4


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(800, 4))


def prepared(allowed):
    made = GradientEngine(convolutions(), cross_entropy)
    with computing_with(allowed):
        made.prepare(*BATCH)
    return made


def test_torch_has_as_many_threads_afterwards_as_before():
    before = torch.get_num_threads()
    with computing_with(before + 2):
        GradientEngine(convolutions(), cross_entropy).clip(*BATCH, 1.0)
        assert torch.get_num_threads() == before + 2
        with pytest.raises(ZeroDivisionError), computing_with(1):
            1 / 0  # noqa: B018
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before


class Machine:
    """A machine on which a step takes what is said: seconds by number of threads, and others' share of its turns."""

    def __init__(self, quiet, busy=lambda threads, turn: 0.0):
        self.now, self.quiet, self.busy, self.turns = 0.0, quiet, busy, dict.fromkeys(quiet, 0)

    def step(self):
        threads = torch.get_num_threads()
        self.now += self.quiet[threads] + self.busy(threads, self.turns[threads])
        self.turns[threads] += 1


@pytest.mark.parametrize("scale", [0.001, 1.0], ids=["a short step", "a step longer than there is time to try"])
@pytest.mark.parametrize("busy", [(), (1,), (2,), (1, 2)], ids=["nobody", "one", "two", "both"])
@pytest.mark.parametrize(
    ("quiet", "fastest"), [({1: 1.0, 2: 0.6, 3: 0.9}, 2), ({1: 1.0, 2: 0.95}, 1), ({1: 1.0, 2: 8.0}, 1)]
)
def test_moments_in_which_others_have_the_cores_change_nothing(quiet, fastest, busy, scale, monkeypatch):
    """Others take three of four turns of some numbers of threads."""
    others = lambda threads, turn: 20 * scale * (threads in busy and turn % 4 != 2)  # noqa: E731
    machine = Machine({threads: scale * seconds for threads, seconds in quiet.items()}, others)
    monkeypatch.setattr("time.perf_counter", lambda: machine.now)
    with computing_with(len(quiet)):
        numbers = by_speed(machine.step)
    assert numbers[0] == fastest and sorted(numbers) == list(quiet)
    assert max(machine.turns.values()) <= 12


@pytest.mark.parametrize(("fastest", "apart", "taken"), [(1, (1, 2), 1), (2, (1, 2), 2), (2, (1,), 1)])
def test_the_fastest_number_is_used_with_which_records_are_apart(fastest, apart, taken, monkeypatch):
    monkeypatch.setattr(engine, "by_speed", lambda step: [fastest, 3 - fastest])
    monkeypatch.setattr(engine.Clipped, "same_as", lambda *_: True)  # as it is on most processors
    monkeypatch.setattr(engine, "still_apart", lambda *_: torch.get_num_threads() in apart)
    assert prepared(2).threads == taken


class Counting(nn.Linear):
    """Its result tells how many threads there are."""

    def forward(self, x):
        return super().forward(x) * (1.0 + 2.0**-20 * torch.get_num_threads())


def test_a_number_of_threads_that_changes_a_bit_is_not_used_however_fast(monkeypatch):
    monkeypatch.setattr(engine, "by_speed", lambda step: [2, 1])
    made = GradientEngine(Counting(6, 4), cross_entropy)
    with computing_with(2):
        made.prepare(torch.rand(3, 6), torch.arange(3))
    assert made.threads == 1
