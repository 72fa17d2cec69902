"""The device on which these tests compute: `pytest tests/device --device cuda`, as `make gpu` does."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device on which tests of devices compute: cpu or cuda")


@pytest.fixture(scope="session")
def device(pytestconfig):
    """CPU unless asked otherwise: a run of all tests does not read this file's option."""
    return torch.device(pytestconfig.getoption("--device", default="cpu"))
