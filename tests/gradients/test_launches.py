"""A step launches as many operations as is written here, waits for nothing on a GPU's path, and fills up no row."""

from dataclasses import replace

import pytest
import torch

from benchmarks.gradient_models import problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.launches import of_step
from fedprivacy.mechanisms.keystream import Keystream
from tests.device.models import CASES

TORCH = "2.13.0"
"""Version with which the numbers were counted; another one may compute a layer by more operations, or by fewer."""

COUNTS = {
    "lr-256": (28, 3, 40, 10, None),  # Opacus' 27: what a GPU's sums and noise launch counts more in so small a step
    "mlp-256": (58, 3, 52, 18, 46),
    "cnn-64": (114, 3, 88, 35, 92),
    "transformer-32": (324, 5, 325, 165, 418),
    "residual-32": (130, 3, 139, 49, None),
    "resnet-32": (497, 6, 224, 91, 299),
}
"""Of a step: launches and waits by a CPU's ways, launches by a GPU's, those without privacy, and the least of Opacus'
modes. In one part, the batch's size changes none of the GPU's.
"""


def made(name):
    if name != "residual-32":
        return problem(name, torch.device("cpu"))
    _, targets = CASES["residual"].records(32)
    small = replace(problem("resnet-32", torch.device("cpu")), name=name, build=CASES["residual"].model)
    return replace(small, inputs=torch.randn(32, 3, 4, 4), targets=targets)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name == "resnet-32" else ()) for name in COUNTS]
)
def test_a_step_launches_what_is_written_and_on_a_gpu_s_path_waits_for_nothing(monkeypatch, name):
    """The same noise each time: a draw from outside of its rectangles would be one launch more."""
    monkeypatch.setattr(Keystream, "secret", lambda: Keystream.from_seed(1, name))
    given, (*expected, opacus) = made(name), COUNTS[name]
    on_cpu, on_gpu = OurStep(given), OurStep(given)
    cpu, gpu = of_step(on_cpu), of_step(on_gpu, on_gpu=True)
    assert on_cpu.rows == on_gpu.rows == len(given.inputs)
    assert gpu.waits == 0
    assert opacus is None or gpu.launches <= 1.2 * opacus
    found = [cpu.launches, cpu.waits, gpu.launches, of_step(nonprivate_step(given)).launches]
    assert found == expected, (
        f"torch is {torch.__version__}, and the numbers are those of {TORCH}. By part: {cpu.parts}, {gpu.parts}"
    )
