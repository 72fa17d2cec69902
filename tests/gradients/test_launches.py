"""A step launches as many operations as is written here, waits for nothing on a GPU's path, and fills up no row."""

import pytest
import torch

from benchmarks.gradient_models import Problem, problem
from benchmarks.gradient_steps import OurStep, nonprivate_step
from benchmarks.launches import of_step
from fedprivacy.mechanisms.keystream import Keystream
from tests.device.models import CASES, SMALL

TORCH = "2.13.0"
"""Version with which the numbers were counted; another one may compute a layer by more operations, or by fewer."""

COUNTS = {
    "lr-256": (
        28,
        3,
        40,
        22,
        10,
        None,
    ),  # Opacus' 27: what a GPU's sums and noise launch counts more in so small a step
    "mlp-256": (58, 3, 52, 23, 18, 46),
    "cnn-64": (114, 3, 88, 23, 35, 92),
    "small transformer": (227, 4, 236, 23, 90, None),
    "residual": (130, 3, 139, 23, 49, None),
    "transformer-32": (324, 5, 325, 23, 165, 418),
    "resnet-32": (497, 6, 224, 23, 91, 299),
}
"""Counts of a step: launches and waits by a CPU's ways, launches by a GPU's and with a graph, those without privacy,
and the least of Opacus' modes. In one part, the batch's size changes none of a GPU's.
"""


def made(name):
    if "-" in name:
        return problem(name, torch.device("cpu"))
    case = (CASES | SMALL)[name]
    inputs, targets = case.records(32)
    return Problem(name, case.model, inputs if name in SMALL else inputs[..., :4, :4].contiguous(), targets)


SLOW = ("transformer-32", "resnet-32")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in SLOW else ()) for name in COUNTS]
)
def test_a_step_launches_what_is_written_and_on_a_gpu_s_path_waits_for_nothing(monkeypatch, name):
    """The same noise each time: a draw from outside of its rectangles would be one launch more."""
    monkeypatch.setattr(Keystream, "secret", lambda: Keystream.from_seed(1, name))
    given, (*expected, opacus) = made(name), COUNTS[name]
    steps = [OurStep(given) for _ in range(3)]
    ways = {}, {"on_gpu": True}, {"on_gpu": True, "graph": True}
    cpu, gpu, graph = (of_step(step, **way) for step, way in zip(steps, ways, strict=True))
    assert [step.rows for step in steps] == 3 * [len(given.inputs)]
    assert gpu.waits == graph.waits == 0
    assert opacus is None or graph.launches <= gpu.launches <= 1.2 * opacus
    found = [cpu.launches, cpu.waits, gpu.launches, graph.launches, of_step(nonprivate_step(given)).launches]
    assert found == expected, (
        f"torch is {torch.__version__}, and the numbers are those of {TORCH}. By part: {cpu.parts}, {gpu.parts}"
    )
