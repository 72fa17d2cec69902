"""A stack computes each client's clipped sum as the client alone would, and no client's bits depend on another's."""

import itertools
import math
from contextlib import nullcontext
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, flat_parameters, stacked
from fedprivacy.gradients.clipping import CLIPPINGS
from fedprivacy.gradients.products import as_on_gpu
from fedprivacy.gradients.stack_check import admitted_stack
from fedprivacy.gradients.stacked import ROWS, Pool, Stack
from tests.gradients.oracle import cross_entropy

MODELS = {
    "logistic": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 9, bias=False), nn.Sigmoid(), nn.Linear(9, 3)
    ),
    "pictures": lambda: nn.Sequential(
        *(nn.Unflatten(1, (2, 7, 6)), nn.Conv2d(2, 5, 3, padding=1), nn.Tanh()),
        *(nn.Conv2d(5, 4, (3, 2), stride=(2, 3), padding=(1, 0), bias=False), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(12, 3)),
    ),
    "frozen body": lambda: nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.GELU(), nn.Linear(8, 3)),
}
SIZES = [0, 1, 7, ROWS, ROWS + 1, 3 * ROWS + 5, 12]  # of the batches
NORMS = np.geomspace(0.05, 20.0, len(SIZES))
RECORDS = 80
NO_RECORDS = torch.empty(0, 6), torch.empty(0, dtype=torch.int64)
WIDTHS = {"pictures": 84}  # of a record; of the others 6
ON_GPU = {"mlp": 2**22, "pictures": 2**26}  # models that are stacked as on a GPU, and bytes of a turn that suit a CPU


pytestmark = pytest.mark.usefixtures("rows_alike")  # a frozen layer's products are shared by the slots


def squared_error(outputs, targets):
    return (outputs.sum(1) - targets).square()


LOSSES = {torch.int64: cross_entropy, torch.float32: squared_error}


@cache
def admitted_together(model, clipping, targets):
    """A model's initial parameters, its stack, and the engine that computes one client's sums by itself."""
    torch.manual_seed(0)
    network, made = MODELS[model](), CLIPPINGS[clipping]()
    empty = torch.empty(0, WIDTHS.get(model, 6)), torch.empty(0, dtype=targets)
    with as_computed(model), patch.object(stacked, "BYTES_ON_GPU", ON_GPU.get(model)):
        stack = admitted_stack(network, LOSSES[targets], made, *empty)
    return flat_parameters(network), stack, GradientEngine(network, LOSSES[targets], made)


def as_computed(model):
    return as_on_gpu() if model in ON_GPU else nullcontext()


class Cohort:
    """Clients with shards, batches and models of their own, and the stack of these models."""

    def __init__(self, model="mlp", clipping="flat", targets=torch.int64):
        generator, order = torch.Generator().manual_seed(0), np.random.default_rng(0)
        self.model = model
        self.shards = [self._shard(targets, generator) for _ in SIZES]
        self.batches = [order.permutation(RECORDS)[:size] for size in SIZES]
        start, self.stack, self._engine = admitted_together(model, clipping, targets)
        self.positions = start + 0.3 * torch.randn(len(SIZES), len(start), generator=generator)

    def clip(self, chosen=None):
        chosen = list(range(len(SIZES))) if chosen is None else chosen
        pool = Pool.of([self.shards[client] for client in chosen])
        batches = [self.batches[client] for client in chosen]
        with as_computed(self.model):
            return self.stack.clip(self.positions[chosen], pool, batches, NORMS[chosen])

    def alone(self, client):
        """The engine's sum of one client's batch."""
        own = [p for p in self._engine.model.parameters() if p.requires_grad]
        nn.utils.vector_to_parameters(self.positions[client].clone(), own)
        rows = (rows[torch.from_numpy(self.batches[client])] for rows in self.shards[client])
        return self._engine.clip(*rows, NORMS[client])

    def _shard(self, targets, generator):
        inputs = torch.randn(RECORDS, WIDTHS.get(self.model, 6), generator=generator)
        labels = torch.randint(0, 3, (RECORDS,), generator=generator)
        return inputs, labels if targets == torch.int64 else torch.randn(RECORDS, generator=generator)


QUICK = [("deep", "flat"), ("pictures", "per-layer")]


def check(cohort):
    """Every client's sum and norms against the engine's."""
    stacked, start = cohort.clip(), 0
    for client, size in enumerate(SIZES):
        expected = cohort.alone(client)
        tolerance = 1e-6 * NORMS[client] * max(size, 1)
        assert torch.allclose(stacked.totals[client], expected.total, rtol=0.0, atol=tolerance)
        norms = stacked.squared_norms[start : start + size]
        assert torch.allclose(norms[~norms.isnan()], torch.cat([*expected.squared_norms, norms[:0]]), 1e-3, 1e-4)
        start += size


@pytest.mark.parametrize(
    ("model", "clipping"),
    [
        pytest.param(model, clipping, marks=() if (model, clipping) in QUICK else pytest.mark.exhaustive)
        for model, clipping in itertools.product(MODELS, CLIPPINGS)
    ],
)
def test_each_client_s_sum_is_what_the_engine_makes_of_it_alone(model, clipping):
    check(Cohort(model, clipping))


def test_no_record_adds_more_than_c_though_its_gradient_has_factors_from_both_ends_of_float32():
    """Catches: an output gradient that is scaled to a subnormal number, whose rounding a huge input multiplies."""
    stack, norms = Cohort("logistic", targets=torch.float32).stack, np.geomspace(1e-6, 1e-5, 200)
    shard = torch.tensor([[1e38, 0, 0, 0, 0, 0]]), torch.tensor([1e-20])
    one = [np.zeros(1, dtype=np.int64)]
    clipped = stack.clip(torch.zeros(200, stack.dimension), Pool.of(200 * [shard]), 200 * one, norms)
    assert (clipped.totals.norm(dim=1).numpy() <= norms).all()


@pytest.mark.parametrize("model", ["deep", "mlp", "pictures"])
def test_records_whose_loss_cannot_be_computed_count_for_nothing(model):
    """Not as a record of zeros, either: it would count as one within the clipping norm."""
    cohort = Cohort(model)
    for place, label in ((0, 7), (5, 3), (6, -1), (40, -100)):  # of three labels
        cohort.shards[5][1][cohort.batches[5][place]] = label
    check(cohort)
    cohort.shards[5][1][:] = 7  # all of one client's records
    clipped, before = cohort.clip(), sum(SIZES[:5])
    assert not torch.any(clipped.totals[5])
    assert clipped.squared_norms[before : before + SIZES[5]].isnan().all() and clipped.squared_norms[0].isfinite()


@pytest.mark.parametrize("model", ["logistic", "deep", *ON_GPU])
@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e30, "a label out of range", "fewer records", "nobody else"])
def test_no_bit_of_a_client_depends_on_another(model, value):
    """Catches: kernels that go by the number of slots, a batch that is redone for all because of one record."""
    cohort = Cohort(model)
    before, kept = cohort.clip().totals, [1, 3, 5]
    if value == "nobody else":
        assert torch.equal(cohort.clip(kept).totals, before[kept])
        return
    for client in set(range(len(SIZES))) - set(kept):
        if value == "fewer records":
            cohort.batches[client] = cohort.batches[client][:3]
        elif value == "a label out of range":
            cohort.shards[client][1][:] = 9
        else:
            cohort.shards[client][0][::2] = value
    after = cohort.clip().totals
    assert torch.equal(after[kept], before[kept])
    assert torch.equal(cohort.clip([5, 0, 3, 1]).totals[[0, 2, 3]], before[[5, 3, 1]])


@pytest.mark.parametrize("model", ON_GPU)
def test_on_a_gpu_the_host_waits_for_no_number(monkeypatch, model):
    """Its numbers are on a device that has none: to read one, or to mix in a tensor of the host's, is an error."""
    for name in ("item", "tolist", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a number is read"))
    with as_computed(model):
        network = MODELS[model]().to("meta")
        stack = Stack(network, cross_entropy, CLIPPINGS["per-layer"](), torch.empty(0, WIDTHS.get(model, 6)))
        shards = [[rows.to("meta") for rows in shard] for shard in Cohort(model).shards]
        positions = torch.empty(len(SIZES), stack.dimension, device="meta")
        clipped = stack.clip(positions, Pool.of(shards), Cohort(model).batches, NORMS)
    assert clipped.totals.shape == positions.shape and clipped.squared_norms.shape == (sum(SIZES),)


@pytest.mark.parametrize("model", ON_GPU)
def test_on_a_gpu_no_two_slots_are_added_to_a_client_at_a_time(monkeypatch, model):
    """Its `index_add_` adds in the order in which kernels finish, and other clients' slots decide that."""
    cohort, add = Cohort(model), torch.Tensor.index_add_
    expected, added = cohort.clip().totals, set()

    def in_any_order(totals, axis, places, terms):
        real = places[terms.flatten(1).any(1)].tolist()
        assert len(real) == len(set(real))
        added.update(real)
        return add(totals, axis, places.flip(0), terms.flip(0))

    monkeypatch.setattr(torch.Tensor, "index_add_", in_any_order)
    assert torch.equal(cohort.clip().totals, expected) and added == {c for c, size in enumerate(SIZES) if size}


class Bent(Stack):
    """A stack in which a row's place, or its company, shows."""

    fault = "place"

    def measure(self, matrices, inputs, targets, counted):
        rows, squared = super().measure(matrices, inputs, targets, counted)
        if self.fault == "place":
            squared[:, ::ROWS] *= 1.0 + 2.0**-50
        elif self.fault == "company":
            squared = squared + 1e-12 * inputs.nan_to_num(0.0, 0.0, 0.0).abs().amax()
        elif self.fault == "slots":
            squared = squared * (1.0 + 2.0**-50 * len(inputs))
        elif self.fault == "a record beside it":
            spoilt = ~inputs.view(-1, ROWS * inputs[0].numel()).isfinite().all(1)
            squared = squared * (1.0 + 2.0**-50 * spoilt.double().repeat_interleave(ROWS))
        elif self.fault == "wrong norms":
            squared = 1.01 * squared
        return rows, squared

    def scales(self, squared_norms, usable, clipping_norms):
        if self.fault == "another slot's C":
            clipping_norms = clipping_norms.roll(1)
        elif self.fault == "no clip":
            clipping_norms = 1e6 * clipping_norms
        scales = super().scales(squared_norms, usable, clipping_norms)
        if self.fault == "a client beside it":
            return scales * (1.0 + 2.0**-20 * (not usable.all()))
        if self.fault == "another record's scale":
            return scales.roll(1, 2)
        return scales.flip(0) if self.fault == "another group's scale" else scales

    def flat(self, totals):
        return super().flat(totals) * (1.01 if self.fault == "wrong sums" else 1.0)


FAULTS = ["place", "company", "slots", "wrong norms", "wrong sums"]
SHOWING_A_NEIGHBOUR = ["a record beside it", "a client beside it"]  # where its numbers are not finite
CLIPPED_WRONGLY = ["another slot's C", "no clip", "another record's scale", "another group's scale"]


def bent_stack(monkeypatch, fault):
    """The stack of a model that has this fault, if the check admits it."""
    monkeypatch.setattr("fedprivacy.gradients.stack_check.Stack", Bent)
    monkeypatch.setattr(Bent, "fault", fault)
    torch.manual_seed(0)
    return admitted_stack(MODELS["mlp"](), cross_entropy, CLIPPINGS["per-layer"](), *NO_RECORDS)


@pytest.mark.parametrize("fault", ["none", *FAULTS, *SHOWING_A_NEIGHBOUR, *CLIPPED_WRONGLY])
def test_a_stack_that_computes_something_else_is_not_trusted(monkeypatch, fault):
    assert (bent_stack(monkeypatch, fault) is None) == (fault != "none")


@pytest.mark.parametrize("fault", ["none", "slots", *SHOWING_A_NEIGHBOUR])
def test_on_a_gpu_only_numbers_of_slots_with_other_bits_are_left_out(monkeypatch, fault):
    monkeypatch.setattr(stacked, "BYTES_ON_GPU", ON_GPU["mlp"])
    with as_on_gpu():
        stack = bent_stack(monkeypatch, fault)
    sizes = None if stack is None else stack.sizes
    assert sizes == {"none": (64, 32), "slots": (64,)}.get(fault)


def convolving(**settings):
    return nn.Sequential(nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 4, (1, 1), **settings), nn.Flatten())


OTHERS = {
    "one dimension": nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten()),
    "groups": convolving(groups=2),
    "dilation": convolving(dilation=2),
    "other padding": convolving(padding=1, padding_mode="circular"),
    "padding by name": convolving(padding="same"),
    "positions": nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten()),
    "normalisation": nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)),
    "float64": nn.Linear(6, 3).double(),
    "tied": nn.Sequential(twice := nn.Linear(6, 6), twice),
    "recurrent": nn.GRU(6, 3),
}
ON_A_CPU = {"large": nn.Linear(6, 2500), "convolution": convolving()}


@pytest.mark.parametrize("name", [*OTHERS, *ON_A_CPU])
def test_other_models_are_not_stacked(monkeypatch, name):
    monkeypatch.setattr(stacked, "BYTES_ON_GPU", 2**26 if name == "large" else 2**22)
    for around in (as_on_gpu, nullcontext):
        with around():
            stack = admitted_stack((OTHERS | ON_A_CPU)[name], cross_entropy, CLIPPINGS["flat"](), *NO_RECORDS)
        assert (stack is None) == (name in OTHERS or around is nullcontext)


def test_a_loss_that_mixes_records_is_not_stacked():
    def mixing(outputs, targets):
        return cross_entropy(outputs, targets) - cross_entropy(outputs, targets).mean()

    assert admitted_stack(nn.Linear(6, 3), mixing, CLIPPINGS["flat"](), *NO_RECORDS) is None
