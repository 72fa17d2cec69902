"""Each row is multiplied by itself where products do not treat all rows alike; the rest stays together."""

import logging
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, methods, per_record, products
from fedprivacy.gradients.invariance import sizes_that_agree
from fedprivacy.gradients.methods import SingleRows, warn_of
from fedprivacy.gradients.per_record import RecordScores
from fedprivacy.gradients.selfcheck import PlaceError
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.gradients.watch import Watch
from tests.gradients.oracle import cross_entropy

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


@pytest.mark.parametrize("method", ["program", "vmap"])
def test_they_are_used_before_any_slower_way_and_the_sum_is_the_same(method, rows_differ, monkeypatch):
    torch.manual_seed(0)
    model = perceptron()
    if method == "vmap":
        monkeypatch.setattr(methods, "BookKeeping", type("None", (), {"name": "book-keeping"}))
        monkeypatch.setattr(methods, "Program", type("None", (), {"name": "program"}))
    engine = GradientEngine(model, cross_entropy)
    found = engine.clip(*BATCH, 0.3)
    assert engine.method == f"{method}, one row at a time"
    assert engine.sizes[-1] <= 32 < engine.sizes[0]
    monkeypatch.undo()
    expected = GradientEngine(model, cross_entropy).clip(*BATCH, 0.3)
    assert (found.total - expected.total).norm() < 1e-5 * expected.total.norm()


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
