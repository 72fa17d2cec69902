"""On any device, also with little memory, a training's privacy loss is the CPU's, and so is its noise."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import fedprivacy as fp
from fedprivacy.gradients import GradientEngine
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import add_lattice_noise, add_lattice_noise_on_device, lattice_step
from tests.device.models import CASES
from tests.gradients.oracle import cross_entropy

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 1_000, 2_100_003])
def test_noise_is_the_same_function_of_key_and_position(size, dtype, device):
    total, step = torch.randn(size, dtype=dtype), lattice_step(1.0, size)
    key = Keystream.from_seed(1, "client-0")
    expected = add_lattice_noise(total, 0.8, step, key.reader(Purpose.NOISE, Position(3, 2)))
    for add in (add_lattice_noise, add_lattice_noise_on_device):
        released = add(total.to(device), 0.8, step, key.reader(Purpose.NOISE, Position(3, 2)))
        assert released.device.type == device.type
        assert torch.equal(released.cpu(), expected)
    assert torch.equal(torch.round(expected / step) * step, expected)


@pytest.mark.parametrize("name", ["linear", "convolutions", "transformer"])
def test_a_training_is_the_cpu_s_but_for_the_last_bits(name, device):
    case, budget = CASES[name], {"epsilon": 3.0, "delta": 1e-4, "steps": 6, "sampling_rate": 0.2, "batch_size": 120}
    given = budget | {"clipping": "adaptive", "seed": 4, "progress": False}
    trained = [
        fp.train(case.model(), cross_entropy, case.records(600), device=where, **given)
        for where in (str(device), "cpu")
    ]
    assert trained[0].epsilon == trained[1].epsilon <= 3.0
    there, here = (nn.utils.parameters_to_vector(each.model.parameters()).cpu() for each in trained)
    assert there.isfinite().all()
    assert (there - here).norm() <= 1e-4 * here.norm()


@pytest.mark.parametrize("settings", [{}, {"algorithm": "scaffold", "local_evaluation": 1}], ids=["plain", "scaffold"])
def test_a_simulation_charges_what_the_cpu_s_charges_and_learns_the_same(settings, device, tmp_path):
    given = settings | {"clients": 3, "rounds": 3, "epsilon": 4.0, "seed": 2, "progress": False}
    runs = [
        fp.simulate("cancer", device=where, out=tmp_path / side, **given)
        for side, where in (("there", str(device)), ("here", "cpu"))
    ]
    there, here = runs
    epsilons = [[client["epsilon"] for client in run.clients] for run in runs]
    assert epsilons[0] == epsilons[1]
    assert min(epsilons[0]) > 3.0
    assert math.isclose(there.metrics["accuracy"], here.metrics["accuracy"], abs_tol=0.02)


def test_the_audit_s_gates_pass(device):
    found = fp.audit_training("cancer", clients=3, epsilon=2.0, device=str(device), progress=False)
    assert found.passed, found
    assert max(bound.epsilon for bound in found.lower_bounds) <= found.epsilon_upper


def engine_on(device, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 30 * 30, 10)).to(device)
    return GradientEngine(model, cross_entropy, **options)


@contextmanager
def little_memory(device, bytes_left):
    """Leave a GPU's allocator so much; a CPU has what it has."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated(device) + bytes_left) / total)
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)


def test_parts_get_smaller_where_memory_is_short_and_the_norms_stay(device):
    torch.manual_seed(1)
    inputs, targets = torch.randn(300, 3, 32, 32).to(device), torch.arange(300, device=device) % 10
    whole = engine_on(device)
    expected = whole.clip(inputs, targets, 1.0)
    short = engine_on(device, max_memory=2_000_000)
    found = short.clip(inputs, targets, 1.0)
    assert short.sizes[0] < whole.sizes[0]
    with little_memory(device, 400_000_000):
        again = whole.clip(inputs, targets, 1.0)
        fresh = engine_on(device).clip(inputs, targets, 1.0)
    for clipped in (found, again, fresh):
        assert torch.allclose(torch.cat(clipped.squared_norms), torch.cat(expected.squared_norms), rtol=1e-5)
        assert torch.allclose(clipped.total, expected.total, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.cat(again.squared_norms), torch.cat(expected.squared_norms))
