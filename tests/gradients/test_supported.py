"""A model without sound private gradients is refused by the layer's name, with the remedy; others are not."""

import copy
import itertools
import random
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from fedprivacy.gradients import (
    InPlaceError,
    LossShapeError,
    UnsupportedModelError,
    check_frozen,
    check_model,
    check_on_blank,
    made_private,
)
from fedprivacy.gradients.doctor import Example, behavioural_problems, diagnose
from fedprivacy.gradients.structure import Kind, structural_problems
from tests.gradients.oracle import cross_entropy

FEATURES, TARGETS = torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Custom(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, between, outputs=3):
        super().__init__()
        self.first, self.between, self.head = nn.Linear(6, 6), between, nn.Linear(6, outputs)

    def forward(self, x):
        return self.head(self.between(self.first(x)))


class Text(nn.Module):
    """An embedding, a layer over the words, a head."""

    def __init__(self, core, **embedding):
        super().__init__()
        self.words, self.core, self.head = nn.Embedding(20, 8, **embedding), core, nn.Linear(8, 3)

    def forward(self, ids):
        hidden = self.core(self.words(ids))
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(1))


WORDS = torch.zeros(0, 7, dtype=torch.int64)


# --- layers ---------------------------------------------------------------------------------------------------------


def compiled():
    """Made when it is asked for: it imports the compiler, which takes seconds."""
    return torch.compile(nn.Linear(6, 3))


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(6, 3))


def pruned():
    layer = nn.Linear(6, 3)
    prune.l1_unstructured(layer, "weight", 0.3)
    return layer


class Activated(nn.BatchNorm2d):
    """Left alone: nobody knows what takes its place."""


class Hidden(nn.Module):
    def __init__(self, **held):
        super().__init__()
        self.head = nn.Linear(6, 3)
        for name, value in held.items():
            setattr(self, name, value)


STRUCTURAL = {
    "BatchNorm1d": (nn.BatchNorm1d(6), Kind.BATCH_STATISTICS, "use GroupNorm", True),
    "no statistics": (nn.BatchNorm2d(6, 1e-5, 0.1, True, False).eval(), Kind.BATCH_STATISTICS, "use GroupNorm", True),
    "BatchNorm of one feature": (nn.BatchNorm1d(1), Kind.BATCH_STATISTICS, "leave it out", False),
    "BatchNorm of an unknown kind": (Activated(6), Kind.BATCH_STATISTICS, "use GroupNorm", False),
    "InstanceNorm": (nn.InstanceNorm2d(6, track_running_stats=True), Kind.RUNNING_STATISTICS, "_stats=False", True),
    "Dropout": (nn.Dropout(0.5), Kind.RANDOM, "leave it out", True),
    "MultiheadAttention": (nn.MultiheadAttention(6, 2, dropout=0.1), Kind.RANDOM, "dropout=0", True),
    "LSTM": (nn.LSTM(6, 6, 2, dropout=0.1), Kind.RANDOM, "dropout=0", True),
    "RReLU": (nn.RReLU(), Kind.RANDOM, "LeakyReLU", True),
    "FractionalMaxPool": (nn.FractionalMaxPool2d(2, output_size=3), Kind.RANDOM, "MaxPool2d", False),
    "max_norm of a bag": (nn.EmbeddingBag(9, 3, max_norm=1.0), Kind.EMBEDDING, "leave max_norm out", True),
    "frequencies": (nn.Embedding(9, 3, scale_grad_by_freq=True), Kind.EMBEDDING, "leave scale_grad_by_freq", True),
    "sparse": (nn.Embedding(9, 3, sparse=True), Kind.EMBEDDING, "leave sparse out", True),
    "spectral_norm": (parametrizations.spectral_norm(nn.Linear(6, 3)), Kind.REWRITTEN, "remove it", False),
    "old weight_norm": (old_weight_norm(), Kind.REWRITTEN, "parametrizations.weight_norm", False),
    "pruning": (pruned(), Kind.REWRITTEN, "prune.remove", False),
    "lazy": (nn.LazyLinear(3), Kind.UNINITIALISED, "give its sizes", False),
    "bfloat16": (nn.Linear(6, 3).bfloat16(), Kind.PRECISION, "float32", True),
    "complex": (nn.Linear(6, 3, dtype=torch.complex64), Kind.COMPLEX, "two real parameters", False),
    "layers in a list": (Hidden(blocks=[nn.Linear(6, 6)]), Kind.UNREGISTERED, "nn.ModuleList", False),
    "layers in a dictionary": (Hidden(heads={"a": nn.Linear(6, 6)}), Kind.UNREGISTERED, "nn.ModuleDict", False),
    "a plain tensor": (Hidden(scale=torch.ones(3, requires_grad=True)), Kind.UNREGISTERED, "nn.Parameter", False),
    "DataParallel": (nn.DataParallel(nn.Linear(6, 3)), Kind.WRAPPED, "leave the wrapper out", False),
    "TorchScript": (torch.jit.script(nn.Linear(6, 3)), Kind.WRAPPED, "torch.jit", False),
    "torch.compile": pytest.param(compiled, Kind.WRAPPED, "torch.compile", False, marks=pytest.mark.exhaustive),
}


@pytest.mark.parametrize(("layer", "kind", "remedy", "fixable"), STRUCTURAL.values(), ids=STRUCTURAL)
def test_a_layer_that_cannot_be_trained_is_named_with_the_remedy_or_mended(layer, kind, remedy, fixable):
    model = nn.Sequential(nn.Linear(6, 6), layer if isinstance(layer, nn.Module) else layer())
    problems = [p for p in structural_problems(model) if p.layer.startswith("1")]
    assert [(p.layer, p.kind, p.fixable) for p in problems] == [("1", kind, fixable)]
    assert remedy in problems[0].remedy
    with pytest.raises(UnsupportedModelError, match=f"layer '1' {problems[0].what[:8]}") as refused:
        check_model(model)
    assert remedy in str(refused.value)
    assert ("doctor MODEL --fix" in str(refused.value)) == fixable
    if fixable:
        before = structural_problems(model)
        assert structural_problems(made_private(model)) == []
        assert structural_problems(model) == before


def test_a_model_without_a_trainable_parameter_is_refused():
    for model in (nn.Flatten(), nn.Linear(6, 3).requires_grad_(False)):
        with pytest.raises(UnsupportedModelError, match="nothing to train"):
            check_model(model)


# --- behaviour ------------------------------------------------------------------------------------------------------


def only_problem(model, loss=cross_entropy, inputs=FEATURES, targets=TARGETS):
    (problem,) = behavioural_problems(copy.deepcopy(model), loss, inputs, targets)
    with pytest.raises((UnsupportedModelError, LossShapeError)) as refused:
        check_on_blank(model, loss, inputs, targets)
    assert problem.what in str(refused.value)
    assert problem.remedy in str(refused.value)
    return problem


def by_hand(x):
    return (x - x.mean(0)) / x.var(0, unbiased=False).add(1e-5).sqrt()


class Between(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


MIXING = {
    "centred in place": lambda x: x.sub_(x.mean(0)),
    "batch norm by hand": by_hand,
    "softmax over the batch": lambda x: x.softmax(0),
    "attention over the batch": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "the size of the batch": lambda x: x / len(x),
    "the place in the batch": lambda x: x * torch.arange(1, len(x) + 1)[:, None],
    "the record before": lambda x: x + x.roll(1, 0),
    "one part in a hundred": lambda x: x + 1e-2 * x.mean(0),
}


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING)
def test_a_layer_that_mixes_records_is_named(function):
    inner = only_problem(nn.Sequential(nn.Linear(6, 6), Between(function), nn.Linear(6, 3)))
    assert (inner.layer, inner.kind) == ("1", Kind.MIXES_RECORDS)
    between = only_problem(nn.Sequential(Custom(function), nn.Tanh()))
    assert (between.layer, between.kind) == ("0", Kind.MIXES_RECORDS)
    assert between.what.endswith("before it calls '0.head'")


def test_mixing_shows_through_a_head_that_starts_at_zero():
    model = Custom(by_hand)
    nn.init.zeros_(model.head.weight)
    assert only_problem(model).kind is Kind.MIXES_RECORDS


@pytest.mark.parametrize(
    "function",
    [lambda x: x + 1e-6 * x.mean(0), lambda x: (x + 1e5 * len(x)) - 1e5 * len(x)],
    ids=["of float32", "coarser, as some devices do"],
)
def test_rounding_is_not_mixing(function):
    check_on_blank(Custom(function), cross_entropy, FEATURES, TARGETS)


@pytest.mark.parametrize(
    ("core", "layer"),
    [(nn.LSTM(8, 8), "core"), (nn.GRU(8, 8), "core"), (nn.TransformerEncoderLayer(8, 2, 16, 0.0), "core.self_attn")],
    ids=["LSTM", "GRU", "TransformerEncoderLayer"],
)
def test_a_layer_that_takes_the_batch_for_time_is_named(core, layer):
    found = only_problem(Text(core), inputs=WORDS)
    assert (found.layer, found.kind) == (layer, Kind.MIXES_RECORDS)
    assert found.remedy.startswith("set batch_first=True")


def test_a_layer_that_calls_others_differently_for_a_batch_of_one_is_refused():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.many = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.one(x) if len(x) == 1 else self.many(x)

    assert only_problem(Branching()).kind is Kind.MIXES_RECORDS


def test_half_precision_inside_is_not_taken_for_mixing():
    class Rounding(nn.Linear):
        def forward(self, x):
            noise = 1e-3 * len(x)  # as kernels for batches of different size round
            return (super().forward(x) + noise).bfloat16()

    found = only_problem(nn.Sequential(Rounding(6, 6), Between(torch.Tensor.float), nn.Linear(6, 3)))
    assert (found.layer, found.kind) == ("0", Kind.PRECISION)


DRAWING = {
    "torch": lambda x: functional.dropout(x, 0.01),
    "seldom": lambda x: x if torch.rand(()) < 1 else 2 * x,
    "numpy": lambda x: x * float(np.random.rand()),
    "python": lambda x: x * random.random(),
}


@pytest.mark.parametrize("function", DRAWING.values(), ids=DRAWING)
def test_a_layer_that_draws_random_numbers_is_named_and_the_generators_are_left_as_they_were(function):
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state(legacy=False))

    model = nn.Sequential(nn.Linear(6, 6), Between(function), nn.Linear(6, 3))
    before = states()
    found = only_problem(model)
    assert (found.layer, found.kind) == ("1", Kind.RANDOM)
    assert states() == before


def test_a_generator_of_its_own_and_what_is_remembered_outside_of_the_model_is_found_out():
    generator, count = torch.Generator(), itertools.count(1)
    for function in (lambda x: x * torch.rand(1, generator=generator), lambda x: x * next(count)):
        found = only_problem(Custom(function))
        assert found.kind is Kind.CHANGES and "each time" in found.what


class Remembering(nn.Module):
    """Does something with each batch beside what it computes of it."""

    def __init__(self, remember):
        super().__init__()
        self.inner, self.remember, self.seen, self._hidden, self.all = nn.Linear(6, 3), remember, None, None, []
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.remember(self, x.detach())
        return self.inner(x)


REMEMBERED = {
    "attribute": lambda layer, x: setattr(layer, "seen", x),
    "private attribute": lambda layer, x: setattr(layer, "_hidden", x),
    "list": lambda layer, x: layer.all.append(x),
    "buffer": lambda layer, x: setattr(layer, "mean", 0.5 * layer.mean + 0.5 * x.mean(0)),
    "buffer in place": lambda layer, x: layer.mean.mul_(0.5).add_(0.5 * x.mean(0)),
    "once": lambda layer, x: setattr(layer, "seen", x.mean(0) if layer.seen is None else layer.seen),
    "parameter": lambda layer, x: torch.no_grad()(layer.inner.weight.clamp_)(-1, 1),
}


@pytest.mark.parametrize("kind", REMEMBERED)
def test_a_layer_that_remembers_records_is_named(kind):
    found = only_problem(nn.Sequential(Remembering(REMEMBERED[kind]), nn.Tanh()))
    assert (found.layer, found.kind) == ("0.inner" if kind == "parameter" else "0", Kind.STATE)


@pytest.mark.parametrize("change", [lambda x: x.view(-1).mul_(2).view_as(x), lambda x: x.data.mul_(2)])
def test_a_layer_that_changes_the_batch_in_place_is_named(change):
    found = only_problem(nn.Sequential(nn.Identity(), Between(change), nn.Linear(6, 3)))
    assert (found.layer, found.kind) == ("1", Kind.EDITS_BATCH)
    assert "x = x + y" in found.remedy


def test_a_layer_whose_input_is_changed_after_it_has_read_it_is_named():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            hidden = self.first(x).tanh()
            result = self.head(hidden)
            hidden += 1
            return result

    with pytest.raises(InPlaceError, match=r"layer 'head' has its input changed in place.*x = x \+ y"):
        check_on_blank(Late(), cross_entropy, FEATURES, TARGETS)
    for inplace in (nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)):
        check_on_blank(nn.Sequential(nn.Linear(6, 6), inplace, nn.Linear(6, 3)), cross_entropy, FEATURES, TARGETS)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(6, 3), Between(lambda x: {"logits": x})), "returns a dict, not a tensor"),
        (Custom(lambda x: x.mean(0), outputs=4), r"returns shape \[4\] for a batch of 3"),
        (nn.Sequential(Custom(lambda x: x, outputs=1), Between(torch.squeeze)), r"returns shape \[\] for a batch of 1"),
        (nn.Sequential(nn.Linear(6, 3), Between(torch.t)), r"returns shape \[3, 1\] for a batch of 1"),
    ],
    ids=["dict", "mean", "squeeze", "transposed"],
)
def test_outputs_that_do_not_count_the_records_are_refused(model, words):
    with pytest.raises(UnsupportedModelError, match=words):
        check_on_blank(model, cross_entropy, FEATURES, TARGETS)


# --- losses ---------------------------------------------------------------------------------------------------------

COUNT = itertools.count(1)
LOSSES = {
    "normalised": (lambda o, t: cross_entropy(o, t) / cross_entropy(o, t).sum(), Kind.MIXES_RECORDS),
    "balanced": (lambda o, t: cross_entropy(o, t) / t.bincount()[t], Kind.MIXES_RECORDS),
    "mean, expanded": (lambda o, t: cross_entropy(o, t).mean().expand(len(t)), Kind.MIXES_RECORDS),
    "dropout": (lambda o, t: cross_entropy(functional.dropout(o, 0.1), t), Kind.RANDOM),
    "changed targets": (lambda o, t: cross_entropy(o, t.mul_(0)), Kind.EDITS_BATCH),
    "counted": (lambda o, t: next(COUNT) * cross_entropy(o, t), Kind.CHANGES),
}


@pytest.mark.parametrize(("loss", "kind"), LOSSES.values(), ids=LOSSES)
def test_a_loss_that_mixes_records_draws_or_changes_something_is_refused(loss, kind):
    found = only_problem(nn.Linear(6, 3), loss)
    assert (found.layer, found.kind) == (None, kind)


# --- the check -----------------------------------------------------------------------------------------------------


def test_no_value_of_a_record_is_read():
    records = torch.full((5, 6), float("nan"))
    model = Custom(lambda x: x if x.isfinite().all() else 1 / 0)
    check_on_blank(model, cross_entropy, records, torch.full((5,), 10**9))


@pytest.mark.parametrize("what", ["trained", "frozen", "buffer", "buffer that is not saved", "attribute"])
def test_what_is_not_trained_must_be_the_same_everywhere(what):
    """Frozen parameters and random projections, which a model draws anew each time that it is made."""

    def model():
        built = nn.Linear(6, 3)
        if what == "frozen":
            built.weight.requires_grad_(False)
        elif what == "attribute":
            built.projection = torch.randn(6, 6)
        elif what != "trained":
            built.register_buffer("projection", torch.randn(6, 6), persistent=what == "buffer")
        return nn.Sequential(built)

    check_frozen(one := model(), copy.deepcopy(one))
    if what == "trained":
        check_frozen(one, model())
        return
    name = "weight" if what == "frozen" else "projection"
    with pytest.raises(UnsupportedModelError, match=rf"other values of 0\.{name} each time"):
        check_frozen(one, model())


# --- the mended model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "groups"), [(nn.BatchNorm1d(6), 1), (nn.BatchNorm2d(64), 16), (nn.BatchNorm2d(256), 32)], ids=str
)
def test_group_norm_keeps_scale_and_shift_and_shared_layers_stay_shared(norm, groups):
    nn.init.normal_(norm.weight)
    norm.bias.requires_grad_(False)
    shared = made_private(nn.ModuleDict({"a": nn.Sequential(norm, nn.ReLU()), "b": norm}))
    mended = shared["b"]
    assert mended is shared["a"][0]
    assert (type(mended), mended.num_groups, mended.eps) == (nn.GroupNorm, groups, norm.eps)
    assert torch.equal(mended.weight, norm.weight) and mended.weight is not norm.weight
    assert mended.weight.requires_grad and not mended.bias.requires_grad


# --- the diagnosis --------------------------------------------------------------------------------------------------


def example(loss=cross_entropy, shape=(6,)):
    return Example(loss=loss, inputs=torch.zeros(0, *shape), targets=TARGETS)


def test_a_diagnosis_looks_behind_the_problems_that_can_be_fixed():
    model = Custom(by_hand)
    model.first = nn.Sequential(model.first, nn.BatchNorm1d(6), nn.Dropout(0.5))
    diagnosis = diagnose(model, example(functional.cross_entropy))
    assert [(p.layer, p.kind) for p in diagnosis.problems] == [
        ("first.1", Kind.BATCH_STATISTICS),
        ("first.2", Kind.RANDOM),
        ("", Kind.MIXES_RECORDS),
        (None, Kind.LOSS_SHAPE),
    ]
    assert not diagnosis.sound and diagnosis.fixable and diagnosis.ran
    assert diagnosis.method is None


@pytest.mark.parametrize(
    ("model", "loss", "layer", "words"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.Linear(5, 3)), cross_entropy, "1", "RuntimeError on .* shape .6.: mat1"),
        (Custom(lambda x: x @ x), cross_entropy, "", "raises RuntimeError"),
        (nn.Linear(6, 3), lambda o, t: o @ t, None, "raises RuntimeError"),
        (nn.Sequential(nn.Linear(6, 3), Between(torch.Tensor.detach)), cross_entropy, "", "does not require grad"),
    ],
    ids=["layer", "model", "loss", "backward"],
)
def test_what_fails_is_named(model, loss, layer, words):
    (found,) = diagnose(model, example(loss)).problems
    assert (found.layer, found.kind) == (layer, Kind.FAILS)
    assert re.search(words, found.what)


def test_records_of_zeros_without_a_gradient_are_a_warning():
    first = nn.Linear(6, 6, bias=False)
    for model in (
        nn.Sequential(Between(torch.log), nn.Linear(6, 3)),
        nn.Sequential(first, Between(lambda x: x.abs().sqrt()), nn.Linear(6, 3)),
        nn.Sequential(Between(lambda x: x if x.any() else 1 / 0), nn.Linear(6, 3)),
    ):
        diagnosis = diagnose(model, example())
        assert [(p.kind, p.warning) for p in diagnosis.problems] == [(Kind.NO_GRADIENT, True)]
        assert diagnosis.sound
        check_on_blank(model, cross_entropy, FEATURES, TARGETS)


def test_a_layer_without_influence_is_a_warning():
    model = Custom(torch.tanh)
    model.spare = nn.Linear(2, 2)
    diagnosis = diagnose(model, example())
    assert [(p.layer, p.kind, p.warning) for p in diagnosis.problems] == [("spare", Kind.UNUSED, True)]
    assert diagnosis.sound
