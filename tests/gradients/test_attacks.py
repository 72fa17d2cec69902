"""Models, records and settings with which one record once counted for more than C, or was seen from outside."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedprivacy.gradients import FlatClipping, GradientEngine, check_on_blank
from fedprivacy.gradients.surroundings import undisturbed
from tests.gradients.oracle import cross_entropy, expected_sum, no_program, records_gradients


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


class TimeFirst(nn.Module):
    """Looks at three steps, time first, through a head that starts at zero."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(5, 6), nn.Linear(6, 4)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.inner(x.transpose(0, 1)).tanh().mean(0))


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_head_that_starts_at_zero_hides_no_wrong_axis(autocast):
    torch.manual_seed(0)
    model, inputs, targets = TimeFirst(), torch.rand(3, 3, 5), torch.arange(3)
    check_on_blank(model, cross_entropy, inputs, targets)
    engine = GradientEngine(model, cross_entropy, autocast=autocast)
    engine.prepare(inputs, targets)
    nn.init.normal_(model.head.weight)
    inputs[0] *= 1e3
    check(engine, inputs, targets, 1e-3)


class SortedByLength(nn.Module):
    """Sorts its batch for the inner layer, as for packed sequences."""

    def __init__(self, indices):
        super().__init__()
        self.inner, self.head, self.indices = nn.Linear(5, 6), nn.Linear(6, 4), indices

    def forward(self, x):
        order = self.indices((x != 0).any(2).sum(1))
        return self.head(self.inner(x[order]).tanh().mean(1)[order.argsort()])


def by_list(lengths):
    numbers = lengths.tolist()
    return torch.tensor(sorted(range(len(numbers)), key=lambda i: -numbers[i]))


@pytest.mark.parametrize("indices", [by_list, lambda lengths: lengths.argsort(descending=True, stable=True)])
def test_a_batch_that_is_sorted_by_length_is_not_mixed_up(indices):
    torch.manual_seed(0)
    model, inputs, targets = SortedByLength(indices), torch.rand(4, 7, 5), torch.arange(4)
    for record, length in enumerate((4, 6, 3, 5)):
        inputs[record, length:] = 0
    check_on_blank(model, cross_entropy, inputs, targets)
    inputs[2] *= 100
    check(GradientEngine(model, cross_entropy), inputs, targets, 0.1)


class Experts(nn.Module):
    """Sends each record to one of three layers; brightness from 0 to 1 goes to the first."""

    def __init__(self, by_mask):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(5, 6) for _ in range(3))
        self.head, self.by_mask = nn.Linear(6, 4), by_mask

    def forward(self, x):
        which, out = x.mean((1, 2)).long().clamp(0, 2), x.new_zeros(*x.shape[:2], 6)
        for number, expert in enumerate(self.experts):
            mask = which == number
            if self.by_mask:
                out = out.masked_scatter(mask[:, None, None], expert(x[mask]))
            elif mask.any():
                out = out.index_copy(0, mask.nonzero().squeeze(1), expert(x[mask]))
        return self.head(out.tanh().mean(1))


@pytest.mark.parametrize("by_mask", [True, False])
def test_experts_that_made_up_records_do_not_reach(by_mask):
    torch.manual_seed(0)
    model, inputs, targets = Experts(by_mask), torch.rand(4, 4, 5), torch.arange(4)
    check_on_blank(model, cross_entropy, inputs, targets)
    inputs[:3] += 1
    inputs[3] += 2
    check(GradientEngine(model, cross_entropy), inputs, targets, 0.1)


class LookingTwice(nn.Module):
    """Uses an attention's one weight as a whole and, behind a gate that starts at zero, by rows."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
        self.gate = nn.Parameter(torch.zeros(1, 1, 8))

    def forward(self, x):
        again = x.clone()
        first = self.attention(x, x, x)[0]
        return (first + self.gate * self.attention(x, again, again)[0]).sum(1)


def test_a_weight_that_is_used_as_a_whole_and_by_rows():
    torch.manual_seed(0)
    model, inputs, targets = LookingTwice(), torch.rand(4, 4, 8), torch.arange(4)
    model.gate.requires_grad_(False)
    engine = GradientEngine(model, cross_entropy)
    engine.prepare(inputs, targets)
    nn.init.ones_(model.gate)
    check(engine, inputs, targets, 1e-3)


def test_a_scale_that_float32_cannot_hold_lets_nothing_pass():
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


def masked_loss(outputs, targets):
    """One loss for each record but those with target 7."""
    return functional.cross_entropy(outputs, targets, reduction="none", ignore_index=7)[targets != 7]


def test_a_record_for_which_the_loss_has_another_shape_contributes_zero():
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(3, 4), torch.rand(4, 3), torch.tensor([0, 1, 7, 2])
    check_on_blank(model, masked_loss, inputs, targets)
    for clean in (GradientEngine(model, masked_loss), GradientEngine(model, cross_entropy)):
        rest = clean.clipped_sum(inputs[targets != 7], targets[targets != 7], 1.0)
        with no_program():
            assert torch.allclose(GradientEngine(model, masked_loss).clipped_sum(inputs, targets, 1.0), rest)


def test_a_float64_record_beyond_float32_does_not_erase_the_others():
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(3, 1).double(), torch.rand(4, 3).double(), torch.zeros(4).double()
    engine = GradientEngine(model, lambda outputs, targets: (outputs[:, 0] - targets).square())
    rest = engine.clipped_sum(inputs[2:], targets[2:], 1.0)
    for outlier in (1e39, 1e50, 1e76, 1e200):
        inputs[:2] = outlier
        assert (engine.clipped_sum(inputs, targets, 1.0) - rest).norm() <= 2.0


def test_two_threads_do_not_take_each_other_s_records():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(30, 4))
    batches = [(torch.randint(9, (8, 6)), torch.randint(4, (8,))) for _ in range(2)]
    engines = [GradientEngine(model, cross_entropy) for _ in batches]
    alone = [engine.clipped_sum(*batch, 0.1) for engine, batch in zip(engines, batches, strict=True)]

    def errors(which):
        sums = (engines[which].clipped_sum(*batches[which], 0.1) for _ in range(20))
        return [(result - alone[which]).norm().item() for result in sums]

    with ThreadPoolExecutor(3) as pool:
        plain = pool.submit(lambda: [model(batches[0][0]) for _ in range(20)])
        assert max(max(found) for found in pool.map(errors, range(2))) < 1e-5
        assert all(torch.equal(outputs, plain.result()[0]) for outputs in plain.result())


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
