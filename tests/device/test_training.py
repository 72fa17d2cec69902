"""On any device: a training, a simulation, an audit; the privacy loss is the CPU's, and so is the noise."""

import math

import pytest
import torch
from torch import nn

import fedprivacy as fp
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
    case = CASES[name]
    trained = [
        fp.train(
            case.model(),
            cross_entropy,
            case.records(600),
            epsilon=3.0,
            delta=1e-4,
            steps=6,
            sampling_rate=0.2,
            batch_size=120,
            clipping="adaptive",
            seed=4,
            device=where,
            progress=False,
        )
        for where in (str(device), "cpu")
    ]
    assert trained[0].epsilon == trained[1].epsilon <= 3.0
    there, here = (nn.utils.parameters_to_vector(each.model.parameters()).cpu() for each in trained)
    assert there.isfinite().all()
    assert (there - here).norm() <= 1e-4 * here.norm()


@pytest.mark.parametrize("settings", [{}, {"algorithm": "scaffold", "local_evaluation": 1}], ids=["plain", "scaffold"])
def test_a_simulation_charges_what_the_cpu_s_charges_and_learns_the_same(settings, device, tmp_path):
    runs = [
        fp.simulate(
            "cancer",
            clients=3,
            rounds=3,
            epsilon=4.0,
            seed=2,
            device=where,
            out=tmp_path / side,
            progress=False,
            **settings,
        )
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
