"""No record counts for more than C: in every clipping, in float32, and whatever model, records and settings attack."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedprivacy.gradients import AutomaticClipping, FlatClipping, GradientEngine, PerLayerClipping, check_on_blank
from fedprivacy.gradients.engine import Clipped
from fedprivacy.gradients.surroundings import undisturbed
from fedprivacy.gradients.watch import IndicesInRange, OnePath
from tests.gradients.oracle import cross_entropy, expected_sum, records_gradients


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture(scope="module")
def engine():
    """Shared: to choose its method takes most of the time."""
    torch.manual_seed(0)
    return GradientEngine(mlp(), cross_entropy)


def batch_of(size, *record):
    return torch.randn(size, *record), torch.randint(3, (size,))


def test_parts_of_a_batch_that_are_joined_count_all_its_records(engine):
    torch.manual_seed(0)
    clip, (inputs, targets) = engine.clip, batch_of(50, 6)
    norm = float(torch.cat(clip(inputs, targets, 1.0).squared_norms).median().sqrt()) * (1 + 1e-6)
    parts = [clip(inputs[some], targets[some], norm) for some in (slice(0, 30), slice(30, 41), slice(41, 50))]
    joined = Clipped.join(parts)
    assert (joined.records, joined.within(norm)) == (50, 25)
    assert torch.allclose(joined.total, clip(inputs, targets, norm).total, atol=1e-5)


def test_one_record_never_counts_for_more_than_c(engine):
    torch.manual_seed(0)
    inputs, targets = batch_of(50, 6)
    assert 0.9 < largest_change(engine, 1e4 * inputs, targets, 0.1) <= 1 + 1e-5


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), "label"])
def test_a_record_without_a_finite_gradient_contributes_zero(poison, engine):
    """A record that makes the computation fail contributes nothing either."""
    torch.manual_seed(0)
    inputs, targets = batch_of(5, 6)
    good = torch.arange(5) != 2
    clean = engine.clipped_sum(inputs[good], targets[good], 1.0)
    if poison == "label":
        targets[2] = 9
    else:
        inputs[2] = poison
    assert torch.allclose(engine.clipped_sum(inputs, targets, 1.0), clean, atol=1e-6)


@pytest.mark.parametrize("clipping_norm", [1e-6, 1.0, 1e6])
def test_gradients_of_any_size_are_clipped(clipping_norm, both_ways):
    """Squares of entries below 1e-23 vanish in float32; a norm of zero would let them pass."""
    engine = GradientEngine(nn.Linear(3, 1, bias=False), lambda outputs, sizes: sizes * outputs[:, 0])
    gradient = torch.tensor([[1.0, -2.0, 2.0]])
    for size in (1e-12, 1e-20, 1e-25, 1e-30, 1e8):
        result = engine.clipped_sum(gradient, torch.tensor([size]), clipping_norm)
        expected = gradient[0].double() * min(size, clipping_norm / 3.0)
        assert torch.allclose(result, expected, rtol=1e-5, atol=0.0)
        assert result.norm() <= clipping_norm


def test_a_loss_that_averages_over_the_batch_is_refused():
    with pytest.raises(ValueError, match="one value for each record"):
        GradientEngine(mlp(), functional.cross_entropy).clipped_sum(*batch_of(4, 6), 1.0)


# --- every clipping ---

RECORDS = 500
CLIPPINGS = (FlatClipping(), PerLayerClipping(), AutomaticClipping(), AutomaticClipping(stability=1e-6))


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
@pytest.mark.parametrize("layers", [1, 2, 7])
@pytest.mark.parametrize("clipping_norm", [1e-3, 0.7, 3e4])
def test_a_scaled_gradient_is_no_longer_than_c_though_every_step_rounds_to_float32(clipping, layers, clipping_norm):
    """Gradients have every length, from far below C to far above it, all of it in one layer or spread over them."""
    torch.manual_seed(0)
    groups = clipping.groups([f"layer{i}.weight" for i in range(layers)])
    lengths = clipping_norm * torch.logspace(-9, 9, RECORDS, dtype=torch.float64)
    gradients = torch.randn(layers, RECORDS, 5, dtype=torch.float64) * torch.logspace(0, 3, RECORDS)[:, None]
    gradients[1:, : RECORDS // 2] = 0.0
    gradients = (gradients * (lengths / gradients.square().sum((0, 2)).sqrt())[:, None]).float()
    squared = torch.zeros(max(groups) + 1, RECORDS, dtype=torch.float64)
    squared.index_add_(0, torch.tensor(groups), gradients.norm(dim=2).double().square())
    scales = clipping.scales(squared, clipping_norm).float()
    clipped = torch.stack([gradients[i] * scales[groups[i]][:, None] for i in range(layers)])
    norms = clipped.double().square().sum((0, 2)).sqrt()
    assert norms.max() <= clipping_norm
    assert norms.max() >= clipping_norm * 0.99  # the bound is met, or the test would see no scale that is too large


def test_the_least_stability_is_taken_and_no_less():
    assert AutomaticClipping(stability=1e-6).stability == 1e-6
    for less in (0.99e-6, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="stability"):
            AutomaticClipping(less)


def largest_change(engine, inputs, targets, clipping_norm):
    """The largest change of the sum by one record, in clipping norms."""
    whole = engine.clipped_sum(inputs, targets, clipping_norm).double()
    kept = [torch.arange(len(inputs)) != record for record in range(len(inputs))]
    changes = [(whole - engine.clipped_sum(inputs[rows], targets[rows], clipping_norm)).norm() for rows in kept]
    return max(changes).item() / clipping_norm


def check(engine, inputs, targets, clipping_norm, loss=cross_entropy):
    """Assert that each record counts for at most C, and that the sum is the oracle's."""
    assert largest_change(engine, inputs, targets, clipping_norm) <= 1 + 2**-13
    gradients = records_gradients(engine.model, loss, inputs, targets)
    expected = expected_sum(gradients, FlatClipping(), clipping_norm)
    result = engine.clipped_sum(inputs, targets, clipping_norm).double()
    assert (result - expected).norm() <= 1e-4 * max(clipping_norm, expected.norm().item())


class Experts(nn.Module):
    """Sends each record to one of three layers; brightness from 0 to 1 goes to the first."""

    def __init__(self):
        super().__init__()
        self.experts, self.head = nn.ModuleList(nn.Linear(5, 6) for _ in range(3)), nn.Linear(6, 4)

    def forward(self, x):
        which, out = x.mean((1, 2)).long().clamp(0, 2), x.new_zeros(*x.shape[:2], 6)
        for number, expert in enumerate(self.experts):
            mask = which == number
            out = out.masked_scatter(mask[:, None, None], expert(x[mask]))
        return self.head(out.tanh().mean(1))


def test_experts_that_made_up_records_do_not_reach():
    torch.manual_seed(0)
    model, inputs, targets = Experts(), torch.rand(4, 4, 5), torch.arange(4)
    check_on_blank(model, cross_entropy, inputs, targets)
    inputs[:3] += 1
    inputs[3] += 2
    check(GradientEngine(model, cross_entropy), inputs, targets, 0.1)


def test_a_scale_that_float32_cannot_hold_lets_nothing_pass(both_ways):
    engine = GradientEngine(nn.Linear(3, 1, bias=False), lambda outputs, targets: (outputs[:, 0] - targets).square())
    nn.init.ones_(engine.model.weight)
    for size, clipping_norm in itertools.product((1e18, 1e20, 1.3e22, 1e23, 1e30, 3e38), (1e-6, 1.0)):
        for factor in torch.linspace(1, 3, 10):
            result = engine.clipped_sum(factor * torch.full((1, 3), size), torch.zeros(1), clipping_norm)
            assert result.norm() <= clipping_norm * (1 + 2**-13)
    linear = GradientEngine(nn.Linear(3, 1, bias=False), lambda outputs, targets: outputs[:, 0])
    for size, clipping_norm in itertools.product((1e30, 1e38, 3e38), (1e-6, 1.0)):
        one = linear.clipped_sum(torch.tensor([[size, -size / 2, size / 3]]), torch.zeros(1), clipping_norm)
        assert one.norm() <= clipping_norm
    small = GradientEngine(nn.Linear(3, 1, bias=False), lambda outputs, sizes: sizes * outputs[:, 0])
    for factor in torch.linspace(1, 3, 10):  # the other factor would be scaled to a few of float32's least steps
        assert small.clipped_sum(factor * torch.full((1, 3), 1e37), torch.tensor([1e-20]), 1e-6).norm() <= 1e-6


def test_a_sum_is_not_taken_of_parameters_with_which_another_engine_tries_the_layer():
    torch.manual_seed(0)
    layer, batch = nn.Linear(6, 4), (torch.rand(8, 6), torch.arange(8) % 4)
    engine, tries, summed = GradientEngine(layer, cross_entropy), Event(), Event()

    def loss(outputs, targets):
        if not tries.is_set():
            tries.set()
            summed.wait(0.3)  # seconds; in vain, since the sum waits in turn
        return cross_entropy(outputs, targets)

    other = GradientEngine(nn.Sequential(layer), loss)
    nn.init.normal_(layer.weight)
    alone = engine.clipped_sum(*batch, 0.1)
    with ThreadPoolExecutor(1) as pool:
        tried = pool.submit(other.prepare, *batch)
        tries.wait(60)
        beside = engine.clipped_sum(*batch, 0.1)
        summed.set()
        tried.result()
    assert torch.equal(beside, alone)


def test_a_process_that_multiplies_in_low_precision_gets_full_sums_and_its_precision_back(request):
    torch.set_float32_matmul_precision("medium")
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.manual_seed(0)
    model, seen = nn.Linear(512, 256), set()

    def loss(outputs, targets):
        seen.add(torch.get_float32_matmul_precision())
        return cross_entropy(outputs, targets)

    inputs, targets = torch.rand(64, 512), torch.arange(64)
    check(GradientEngine(model, loss), inputs, targets, 0.1)
    assert seen == {"highest"}
    assert torch.get_float32_matmul_precision() == "medium"
    with undisturbed, ThreadPoolExecutor(1) as pool:
        pool.submit(undisturbed.__enter__).result()
        pool.submit(undisturbed.__exit__, None, None, None).result()
        assert torch.get_float32_matmul_precision() == "highest", "another thread is still inside"
    assert torch.get_float32_matmul_precision() == "medium"


TABLE = torch.zeros(5, 2)

LOOKUPS = {
    "embedding": lambda at: functional.embedding(at, TABLE),
    "rows": lambda at: TABLE[at],
    "index_select": lambda at: TABLE.index_select(0, at),
    "gather": lambda at: TABLE.gather(0, at.unsqueeze(1)),
    "take": lambda at: TABLE[:, 0].clone().take(at),
    "scatter": lambda at: TABLE.scatter(0, at.unsqueeze(1), 1.0),
    "scatter_add_": lambda at: TABLE.clone().scatter_add_(0, at.unsqueeze(1), TABLE),
    "index_add_": lambda at: TABLE.clone().index_add_(0, at, TABLE[:4]),
    "index_put": lambda at: TABLE.index_put((at,), TABLE[0]),
    "cross_entropy": lambda at: cross_entropy(torch.rand(4, 5), at),
    "cross_entropy by position": lambda at: cross_entropy(torch.rand(2, 5, 2), at.view(2, 2)),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_an_index_out_of_range_raises_before_a_kernel_meets_it(name):
    look_up, known = LOOKUPS[name], torch.tensor([0, 4, 1, 3])
    with OnePath(known), IndicesInRange() as lookups:
        look_up(known)
    assert lookups.used
    for unknown in (5, -6, 2**40):
        with IndicesInRange(), pytest.raises(IndexError, match="an index is out of range"):
            look_up(torch.tensor([0, unknown, 1, 3]))


def test_a_label_that_the_loss_ignores_is_known():
    with IndicesInRange():
        assert cross_entropy(torch.rand(2, 3), torch.tensor([2, -100]))[1] == 0.0


@pytest.mark.parametrize("place", ["id", "label"])
def test_it_is_seen_inside_of_vmap(place):
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))

    def loss(parameters, ids, label):
        return cross_entropy(functional_call(model, parameters, (ids.unsqueeze(0),)), label.unsqueeze(0))[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    ids, labels = torch.tensor([[0, 4], [1, 3]]), torch.tensor([0, 1])
    with IndicesInRange() as lookups:
        gradients(dict(model.named_parameters()), ids, labels)
    assert lookups.used
    (ids if place == "id" else labels)[1] = 5
    with IndicesInRange(), pytest.raises(IndexError, match="an index is out of range"):
        gradients(dict(model.named_parameters()), ids, labels)


def test_what_looks_nothing_up_is_let_through():
    with IndicesInRange() as lookups:
        nn.Linear(3, 2)(torch.rand(4, 3)).relu().sum(1)[torch.tensor([True, False, True, True])]
    assert not lookups.used


def test_a_float64_record_beyond_float32_does_not_erase_the_others():
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(3, 1).double(), torch.rand(4, 3).double(), torch.zeros(4).double()
    engine = GradientEngine(model, lambda outputs, targets: (outputs[:, 0] - targets).square())
    rest = engine.clipped_sum(inputs[2:], targets[2:], 1.0)
    for outlier in (1e39, 1e50, 1e76, 1e200):
        inputs[:2] = outlier
        assert (engine.clipped_sum(inputs, targets, 1.0) - rest).norm() <= 2.0
