"""On any device: sums are the oracle's, a record's bits are its own, and one record moves a sum by no more than C."""

import pytest
import torch

from fedprivacy.gradients import FlatClipping, GradientEngine, PerLayerClipping
from fedprivacy.gradients.layout import Layout
from fedprivacy.mechanisms.gaussian_sum import SUM_ALLOWANCE
from fedprivacy.tasks import Shard
from tests.device.models import CASES, QUICK, SMALL
from tests.gradients.oracle import cross_entropy, error_of, expected_sum, records_gradients, some_clipping_norm

EXTREMES = (float("nan"), float("inf"), -1e30, 1e30, 1e-40)


@pytest.fixture
def case(name):
    return (CASES | SMALL)[name]


def made(case, device, **options):
    return GradientEngine(case.model().to(device), cross_entropy, **options)


def note(record_property, engine):
    record_property("method", engine.method)
    record_property("sizes", " ".join(map(str, engine.sizes)))
    record_property("refused", "; ".join(engine.refused))


@pytest.mark.parametrize("clipping", [FlatClipping(), PerLayerClipping()], ids=["flat", "per layer"])
def test_sums_are_those_of_a_backward_pass_for_each_record_in_float64(case, name, device, clipping, record_property):
    engine = made(case, device, clipping=clipping)
    inputs, targets = case.records(70)
    gradients = records_gradients(case.model(), cross_entropy, inputs, targets)
    clipping_norm = some_clipping_norm(gradients, clipping)
    result = engine.clipped_sum(inputs.to(device), targets.to(device), clipping_norm).cpu()
    note(record_property, engine)
    assert engine.method.startswith(QUICK.get(name, ""))
    error = error_of(result, expected_sum(gradients, clipping, clipping_norm), clipping_norm)
    record_property("error", error)
    assert error < (1e-3 if name == "residual" else 1e-5)  # a unit at a ReLU's kink may take either side


def in_bf16(case, device):
    return made(case, device, autocast=torch.bfloat16)


@pytest.mark.parametrize("make", [made, in_bf16], ids=["float32", "bfloat16"])
def test_a_record_s_bits_do_not_depend_on_place_company_or_number(case, device, make, record_property):
    engine = make(case, device)
    inputs, targets = (rows.to(device) for rows in case.records(300))
    for parameter in engine.model.parameters():  # a server's, far from those that the check saw
        parameter.data.mul_(3.0)
    norms = torch.cat(engine.clip(inputs, targets, 1.0).squared_norms)
    note(record_property, engine)
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(300, generator=generator)[: 1 + 59 * seed].to(device)
        moved = torch.cat(engine.clip(inputs[rows], targets[rows], 1.0).squared_norms)
        assert torch.equal(moved, norms[rows])


@pytest.mark.parametrize("make", [made, in_bf16], ids=["float32", "bfloat16"])
def test_one_record_moves_the_sum_by_at_most_the_clipping_norm(case, device, trials, make, record_property):
    """Also beside records of extreme numbers, under parameters that a hostile server made large."""
    engine, clipping_norm, furthest = make(case, device), 0.5, 0.0
    seeds, places = trials
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        inputs, targets = case.records(130, seed=seed)
        if inputs.is_floating_point():
            inputs[torch.randperm(130, generator=generator)[:20]] *= 1e6
            for place, extreme in enumerate(EXTREMES):
                inputs[17 * place + 3] = extreme
        inputs, targets = inputs.to(device), targets.to(device)
        for parameter in engine.model.parameters():
            size = 10.0 ** (seed % 6 - 3)
            parameter.data.copy_(size * torch.randn(parameter.shape, generator=generator))
        whole = engine.clipped_sum(inputs, targets, clipping_norm)
        for place in (3, *torch.randint(129, (places - 1,), generator=generator).tolist()):
            rows = torch.arange(129, device=device)
            rows[place] = 129  # the last one takes its place
            rest = engine.clipped_sum(inputs[rows], targets[rows], clipping_norm)
            furthest = max(furthest, float((whole - rest).norm()) / clipping_norm)
    note(record_property, engine)
    record_property("trials", seeds * places)
    record_property("furthest", furthest)
    assert 0.5 < furthest <= 1.0 + SUM_ALLOWANCE


def loss_that_raises(outputs, targets):
    if int(targets.max()) > 10:
        raise ValueError("one label too many")
    return cross_entropy(outputs, targets)


@pytest.mark.parametrize("loss", [cross_entropy, loss_that_raises], ids=["masked", "raises"])
def test_a_record_that_cannot_be_computed_counts_as_nothing_and_the_device_goes_on(case, device, loss):
    """A label or an id that there is not makes a GPU's kernel abort, after which the process cannot use it."""
    engine = GradientEngine(case.model().to(device), loss)
    inputs, targets = case.records(70)
    wrong = {2: case.classes, 33: -7, 64: 10**12}
    bad_targets, bad_inputs = targets.clone(), inputs.clone()
    bad_targets[list(wrong)] = torch.tensor(list(wrong.values()))
    values = {7: torch.nan, 50: -torch.inf} if inputs.is_floating_point() else {5: 10_000, 40: -1}
    for place, value in values.items():
        bad_inputs[place].view(-1)[place % 5] = value
    usable = torch.ones(70, dtype=torch.bool)
    usable[[*wrong, *values]] = False
    found = engine.clip(bad_inputs.to(device), bad_targets.to(device), 0.5)
    assert found.records == 65
    expected = engine.clipped_sum(inputs[usable].to(device), targets[usable].to(device), 0.5)
    assert torch.allclose(found.total, expected, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(engine.clipped_sum(inputs.to(device), targets.to(device), 0.5)).all()


def test_a_person_s_rows_are_averaged_and_nobody_s_number_of_rows_shows(case, device):
    """Persons of one to three rows, beside others of any number."""
    engine = made(case, device, layout=Layout(3))
    inputs, targets = case.records(90)
    counts = [1, 3, 2, 2, 1] * 10
    persons = torch.arange(50).repeat_interleave(torch.tensor(counts))
    shard = Shard(inputs, targets, null=False, persons=persons, most_rows=3).to(device)
    by_row = records_gradients(case.model(), cross_entropy, inputs, targets)
    gradients = {name: torch.stack([g.mean(0) for g in rows.split(counts)]) for name, rows in by_row.items()}
    clipping_norm = some_clipping_norm(gradients, FlatClipping())
    found = engine.clip(shard.inputs, shard.targets, clipping_norm)
    expected = expected_sum(gradients, FlatClipping(), clipping_norm)
    assert error_of(found.total.cpu(), expected, clipping_norm) < 1e-3
    norms = torch.cat(found.squared_norms)
    for others in (0, 1):  # persons of one row, of three
        company = torch.arange(50, device=device)
        company[1::2] = others
        moved = torch.cat(engine.clip(shard.inputs[company], shard.targets[company], clipping_norm).squared_norms)
        assert torch.equal(moved[::2], norms[::2])
