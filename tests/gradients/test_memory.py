"""Memory that runs out is no record's fault: how many records there are must not decide whether they count."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine
from fedprivacy.gradients.layout import Layout
from fedprivacy.gradients.methods import admit_method
from fedprivacy.gradients.per_record import RowByRow
from fedprivacy.gradients.pieces import Sums, TableRows, squared_norms
from fedprivacy.gradients.program import Program
from fedprivacy.gradients.surroundings import Surroundings
from tests.gradients.oracle import cross_entropy

ON_A_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ...")


def batch(records, views):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, views, 6, generator=generator) if views > 1 else torch.randn(200, 6, generator=generator)
    return inputs[:records], torch.ones(records, dtype=torch.long)


def made(views):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 80), nn.Tanh(), nn.Linear(80, 3))  # large enough for blocks in float32
    return GradientEngine(model, cross_entropy, layout=Layout(views=views))


def assert_same(found, expected):
    """Norms, and so each record's share of the sum, bit for bit; the sum but for the order in which float64 adds."""
    assert torch.equal(torch.cat(found.squared_norms), torch.cat(expected.squared_norms))
    assert (found.total - expected.total).norm() <= 1e-14 * expected.total.norm()


@pytest.fixture(params=[pytest.param(1, id="records"), pytest.param(4, id="views", marks=pytest.mark.exhaustive)])
def views(request):
    return request.param


NOBODY = torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)


@pytest.fixture
def holding(monkeypatch):
    """Lets an engine hold so many records at a time, once it is prepared, and raise an error for more."""

    def hold(made, most, error, parts=None):
        def watched(*asked, **how):
            methods.append(found := admit_method(*asked, **how))
            return found

        def some(inputs, *others):
            if parts is not None:
                parts.append(len(inputs))
            if len(inputs) > most:
                raise error
            return pieces(inputs, *others)

        methods = []
        with monkeypatch.context() as choosing:
            choosing.setattr("fedprivacy.gradients.engine.admit_method", watched)
            made.prepare(*NOBODY)
        pieces = methods[0].method.pieces
        monkeypatch.setattr(methods[0].method, "pieces", some, raising=False)

    return hold


@pytest.mark.parametrize(
    ("records", "error", "bad"),
    [(33, MemoryError(), []), (200, torch.OutOfMemoryError("CUDA out of memory."), []), (65, ON_A_CPU, [40])],
)
def test_what_does_not_fit_is_computed_in_smaller_parts_to_the_same_norms_and_sum(records, error, bad, views, holding):
    """Records whose own fault it is that they cannot be computed are left out."""
    inputs, targets = batch(records, views)
    inputs[bad] = torch.nan
    engine, whole = made(views), made(views)
    expected = whole.clip(inputs, targets, 0.1)
    holding(engine, 32, error, parts := [])
    found = engine.clip(inputs, targets, 0.1)
    assert_same(found, expected)
    assert found.records == records - len(bad)
    assert min(parts) == 32 < max(parts)


def test_what_does_not_fit_in_any_part_is_an_error_and_no_sum_of_nothing(exhausted, holding):
    """Also where each record could be computed by itself, and 32 of them not be written out: the fault of none."""
    for engine, most in ((made(1), 0), (GradientEngine(Greedy(), cross_entropy), 1)):
        holding(engine, most, ON_A_CPU)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            engine.clip(*batch(33, 1), 0.1)
    exhausted(Sums, "add", 0, lambda _, scales, *others: scales.shape[1])
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        made(1).prepare(*NOBODY)


@pytest.fixture
def exhausted(monkeypatch):
    """Lets a step of every engine raise an error for parts of more rows."""

    def exhaust(owner, step, most, rows_of):
        untried = getattr(owner, step)

        def tried(self, *given):
            if rows_of(*given) > most:
                raise ON_A_CPU
            return untried(self, *given)

        monkeypatch.setattr(owner, step, tried)

    return exhaust


@pytest.mark.parametrize("fails", ["gradients", "sum"])
def test_sizes_that_memory_does_not_hold_drop_out_before_there_are_records(fails, views, exhausted):
    """Memory may run out at the gradients or at their sum, over the views and after."""
    if fails == "sum":
        exhausted(Sums, "add", 64, lambda _, scales, *others: scales.shape[1])
    else:
        exhausted(GradientEngine, "_finite", 64, lambda inputs, *_: len(inputs))
    engine = made(views)
    engine.prepare(*NOBODY)
    assert engine.sizes == (64, 32)


class Greedy(nn.Module):
    """Asks for more memory than there is, where a record says so: computed one record after the other."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, rows):
        if bool((rows[:, 0] > 100.0).any()):
            raise MemoryError
        return self.layer(rows)


def test_a_record_that_asks_for_too_much_by_itself_counts_for_nothing_alone():
    """An error would end the round, and with that tell that the record is there."""
    torch.manual_seed(0)
    engine, (inputs, targets) = GradientEngine(Greedy(), cross_entropy), batch(40, 1)
    others = torch.arange(40) != 7
    expected = engine.clip(inputs[others], targets[others], 0.1)
    assert engine.method == "loop"
    inputs[7, 0] = 1e6
    found = engine.clip(inputs, targets, 0.1)
    assert found.records == 39 and torch.allclose(found.total, expected.total, atol=1e-9)


@pytest.mark.parametrize("bad", ["not finite", "label"])
def test_nothing_of_a_part_is_held_while_another_is_computed(bad, monkeypatch, request):
    """Otherwise the second part of a batch, or one with a bad record, needs memory that was not tried."""
    engine, (inputs, targets) = made(1), (rows.repeat(3, *[1] * (rows.dim() - 1)) for rows in batch(200, 1))
    engine.prepare(inputs, targets)
    if bad == "not finite":
        inputs[[5, 590]] = torch.nan
    else:
        targets[[5, 590]] = 7
    pieces, made_so_far, held = Program.pieces, [], []

    def watched(program, *rows):
        held.append(sum(made() is not None for made in made_so_far))
        working = torch.zeros(1)  # which a traceback would hold
        made_so_far.append(weakref.ref(working))
        found = pieces(program, *rows)
        made_so_far.extend(weakref.ref(placed.piece) for placed in found)
        return found

    monkeypatch.setattr(Program, "pieces", watched)
    request.addfinalizer(gc.enable)
    gc.disable()
    assert engine.clip(inputs, targets, 0.1).records == 598
    assert len(held) >= 3 and not any(held)


def test_views_that_do_not_fit_are_made_in_smaller_parts():
    def double(ones, _):
        if len(ones) > 32:
            raise MemoryError
        return 2 * ones

    rows = torch.randn(100, 3)
    given = (torch.zeros(3, 3), torch.zeros(3, 3)), Surroundings(nn.Identity(), double)
    results, known = RowByRow(double, torch.zeros(1, 3), (128, 64, 32), *given)(rows, rows)
    assert torch.equal(results, 2 * rows) and known.all()
    with pytest.raises(MemoryError, match="64 records at a time"):
        RowByRow(double, torch.zeros(1, 3), (128, 64), *given)(rows, rows)


def sized_by_value(targets):
    """Memory that a record asks for by its own value, read where torch does not see it."""
    return torch.empty(1 + int(np.abs(targets.detach().numpy()).max()) // 10**9 * 2**50)


GREEDY = [0, 7, 31, 39]


def test_a_score_or_view_that_asks_for_huge_memory_is_its_record_s_fault_alone():
    """A release that fails once it is charged tells that the record is there."""

    def score(ones, others):
        sized_by_value(others)
        return 2.0 * ones[:, 0]

    scores = RowByRow.choose(
        score, torch.full((1,), torch.nan), lambda *rows: [score(*rows)], nn.Identity(), batch(3, 1)
    )
    inputs, targets = batch(40, 1)
    expected, known = scores(inputs, targets)
    assert scores.sizes[0] > 1 and known.all()
    targets[GREEDY] = 10**9
    found, known = scores(inputs, targets)
    assert [place for place in range(40) if not known[place]] == GREEDY
    assert torch.equal(found[known], expected[known]) and found[~known].isnan().all()


def test_a_loss_that_asks_for_huge_memory_is_its_record_s_fault_alone(views):
    def loss(outputs, targets):
        sized_by_value(targets)
        return cross_entropy(outputs, targets.clamp(0, 2))

    torch.manual_seed(0)
    engine = GradientEngine(
        nn.Sequential(nn.Linear(6, 80), nn.Tanh(), nn.Linear(80, 3)), loss, layout=Layout(views=views)
    )
    inputs, targets = batch(40, views)
    others = torch.tensor([place not in GREEDY for place in range(40)])
    expected = engine.clip(inputs[others], targets[others], 0.1)
    assert engine.sizes[0] > 1 and engine.method != "loop"
    targets[GREEDY] = 10**9
    found = engine.clip(inputs, targets, 0.1)
    assert found.records == 40 - len(GREEDY) and torch.allclose(found.total, expected.total, atol=1e-9)
    assert torch.equal(torch.cat(found.squared_norms), torch.cat(expected.squared_norms))


def test_the_average_of_views_of_a_table_never_writes_the_table():
    ids, gradients = torch.tensor([[3, 5], [3, 10**8], [7, 7], [3, 7]]), torch.randn(4, 2, 5)
    halves = torch.full((2, 2), 0.5)
    averaged = TableRows(ids, gradients, torch.Size([10**9, 5])).average(halves, 0)
    first = torch.stack([gradients[0, 0] + gradients[1, 0], gradients[0, 1], gradients[1, 1]]) / 2
    second = torch.stack([gradients[2].sum(0) + gradients[3, 1], gradients[3, 0]]) / 2
    norms = squared_norms([averaged], [0], 1)[0].sqrt().float()
    assert torch.allclose(norms, torch.stack([first.norm(), second.norm()]))
    small = TableRows(ids.clamp(max=9), gradients, torch.Size([10, 5]))
    written = small.gradients().unflatten(0, (2, 2)).mean(1)
    assert torch.allclose(small.average(halves, 0).gradients(), written)
