"""The device on which these tests compute: `pytest tests/device --device cuda`, as `make gpu` does."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from fedprivacy.gradients.products import as_on_gpu, as_recorded
from tests.device.models import CASES, QUICK, SMALL


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device on which tests of devices compute: cpu or cuda")
    parser.addoption("--lines", type=Path, help="file to which each test's outcome is appended as soon as it is known")


def pytest_configure(config):
    if config.getoption("--lines", default=None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Told(config.getoption("--lines")))


class Told:
    """Appends each test's name, whether it passed, its seconds, and what it noted (a method, an error)."""

    def __init__(self, file):
        self._file, self._phases = file, {}

    def pytest_runtest_logreport(self, report):
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when == "teardown":
            path, _, name = report.nodeid.partition("::")
            test = {
                "name": f"{Path(path).stem}::{name}",
                "passed": all(not phase.failed for phase in phases),
                "seconds": sum(phase.duration for phase in phases),
                "noted": dict(report.user_properties),
            }
            with self._file.open("a") as lines:
                lines.write(json.dumps({"tests": [test]}) + "\n")


def pytest_generate_tests(metafunc):
    """A CPU computes in its own ways, in a GPU's, and as a GPU that repeats a recording."""
    if "device" in metafunc.fixturenames:
        gpu = torch.device(metafunc.config.getoption("--device", default="cpu")).type == "cuda"
        metafunc.parametrize("device", ["cuda"] if gpu else ["cpu", "as a GPU", "recorded"], indirect=True)
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("name", CASES if gpu else CASES | SMALL)


def pytest_itemcollected(item):
    """By a GPU's ways a small model for each method is quick, in float32; all else here is soak."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    small = given.get("name") in QUICK and given.get("device") == "as a GPU"
    if not small or any(word in item.name for word in ("bfloat16", "per layer", "person")):
        item.add_marker(pytest.mark.soak)


@pytest.fixture
def device(pytestconfig, request):
    """CPU unless asked otherwise: a run of all tests does not read this file's option."""
    ways = {"as a GPU": [as_on_gpu], "recorded": [as_on_gpu, as_recorded]}
    with ExitStack() as around:
        for way in ways.get(request.param, ()):
            around.enter_context(way())
        yield torch.device(pytestconfig.getoption("--device", default="cpu"))


@pytest.fixture
def trials(device):
    """Number of seeds and places of hostile trials of each model and type: on a GPU 10,000 in all."""
    return (62, 9) if device.type == "cuda" else (6, 3)
