"""A stack computes each client's clipped sum as the client alone would, and no client's bits depend on another's."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedprivacy.gradients import GradientEngine, flat_parameters
from fedprivacy.gradients.clipping import CLIPPINGS
from fedprivacy.gradients.stack_check import admitted_stack
from fedprivacy.gradients.stacked import ROWS, Pool, Stack
from tests.gradients.oracle import cross_entropy

MODELS = {
    "logistic": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 9, bias=False), nn.Sigmoid(), nn.Linear(9, 3)
    ),
    "frozen body": lambda: nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.GELU(), nn.Linear(8, 3)),
}
SIZES = [0, 1, 7, ROWS, ROWS + 1, 3 * ROWS + 5, 12]  # of the batches
NORMS = np.geomspace(0.05, 20.0, len(SIZES))
RECORDS = 80
NO_RECORDS = torch.empty(0, 6), torch.empty(0, dtype=torch.int64)


pytestmark = pytest.mark.usefixtures("rows_alike")  # a frozen layer's products are shared by the slots


def squared_error(outputs, targets):
    return (outputs.sum(1) - targets).square()


LOSSES = {torch.int64: cross_entropy, torch.float32: squared_error}


@cache
def admitted_together(model, clipping, targets):
    """A model's initial parameters, its stack, and the engine that computes one client's sums by itself."""
    torch.manual_seed(0)
    network, made = MODELS[model](), CLIPPINGS[clipping]()
    empty = torch.empty(0, 6), torch.empty(0, dtype=targets)
    stack = admitted_stack(network, LOSSES[targets], made, *empty)
    return flat_parameters(network), stack, GradientEngine(network, LOSSES[targets], made)


class Cohort:
    """Clients with shards, batches and models of their own, and the stack of these models."""

    def __init__(self, model="mlp", clipping="flat", targets=torch.int64):
        generator, order = torch.Generator().manual_seed(0), np.random.default_rng(0)
        self.shards = [self._shard(targets, generator) for _ in SIZES]
        self.batches = [order.permutation(RECORDS)[:size] for size in SIZES]
        start, self.stack, self._engine = admitted_together(model, clipping, targets)
        self.positions = start + 0.3 * torch.randn(len(SIZES), len(start), generator=generator)

    def clip(self, chosen=None):
        chosen = list(range(len(SIZES))) if chosen is None else chosen
        pool = Pool.of([self.shards[client] for client in chosen])
        batches = [self.batches[client] for client in chosen]
        return self.stack.clip(self.positions[chosen], pool, batches, NORMS[chosen])

    def alone(self, client):
        """The engine's sum of one client's batch."""
        own = [p for p in self._engine.model.parameters() if p.requires_grad]
        nn.utils.vector_to_parameters(self.positions[client].clone(), own)
        rows = (rows[torch.from_numpy(self.batches[client])] for rows in self.shards[client])
        return self._engine.clip(*rows, NORMS[client])

    def _shard(self, targets, generator):
        inputs = torch.randn(RECORDS, 6, generator=generator)
        labels = torch.randint(0, 3, (RECORDS,), generator=generator)
        return inputs, labels if targets == torch.int64 else torch.randn(RECORDS, generator=generator)


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
        pytest.param(model, clipping, marks=() if (model, clipping) == ("deep", "flat") else pytest.mark.exhaustive)
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


def test_records_whose_loss_cannot_be_computed_count_for_nothing():
    cohort = Cohort()
    for place in (0, 5, 6, 40):
        cohort.shards[5][1][cohort.batches[5][place]] = 7  # of three labels
    check(cohort)
    cohort.shards[5][1][:] = 7  # all of one client's records
    stacked = cohort.clip()
    assert not torch.any(stacked.totals[5])


@pytest.mark.parametrize("model", ["logistic", "deep"])
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


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten()),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 2), nn.Flatten()),
        nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)),
        nn.Linear(6, 3).double(),
        nn.Linear(6, 3000),
        nn.Sequential(twice := nn.Linear(6, 6), twice),
        nn.GRU(6, 3),
    ],
    ids=["convolution", "positions", "normalisation", "float64", "large", "tied", "recurrent"],
)
def test_other_models_are_not_stacked(model):
    assert admitted_stack(model, cross_entropy, CLIPPINGS["flat"](), *NO_RECORDS) is None


def test_a_loss_that_mixes_records_is_not_stacked():
    def mixing(outputs, targets):
        return cross_entropy(outputs, targets) - cross_entropy(outputs, targets).mean()

    assert admitted_stack(nn.Linear(6, 3), mixing, CLIPPINGS["flat"](), *NO_RECORDS) is None
