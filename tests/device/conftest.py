"""The device on which these tests compute: `pytest tests/device --device cuda`, as `make gpu` does."""

from contextlib import nullcontext

import pytest
import torch

from fedprivacy.gradients.products import as_on_gpu


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device on which tests of devices compute: cpu or cuda")


@pytest.fixture(params=["as it does", "as a GPU does"])
def device(pytestconfig, request):
    """CPU unless asked otherwise (a run of all tests does not read this file's option), by its ways and by a GPU's."""
    device = torch.device(pytestconfig.getoption("--device", default="cpu"))
    gpu = request.param == "as a GPU does"
    if gpu and device.type == "cuda":
        pytest.skip("a GPU has no other ways")
    with as_on_gpu() if gpu else nullcontext():
        yield device
