"""The pace of this machine, and the time that tests may take on it: a plugin of pytest, and a command for `.ci/run`.

    pytest --budget quick ...           # `make test`: fails if the run takes more than 1.25 times its budget
    python -m tests.pace                # seconds of this machine's unit
    python -m tests.pace ci 1043 4.1    # a run of 1,043 s that began when the unit was 4.1 s

Machines differ by more than two times, so a budget counts *units*: the time that a machine needs for a fixed piece of
work, which two processes do at once. They compute with Python, then with torch, and start Python with torch; these are
what the tests spend their time on. The unit is measured before a run and after it, and the mean of both counts.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

BUDGETS = {"quick": 64, "full": 280, "ci": 420}
"""Units that `make test`, the larger part of `make test-all` and the whole of `.ci/run` may take, on two cores."""

TOO_LONG = 1.25
"""A run that takes this many times its budget fails. Above its budget, it says so."""

PROCESSES = 2
"""Processes that work at once, one on each of the two cores that the budgets are for."""

WORK = """
import subprocess, sys, time, torch

def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun

def with_python():
    for _ in range(6):
        sorted({str(number): number * number for number in range(200_000)}.items())

def with_torch():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())
    images = torch.randn(32, 1, 28, 28)
    for _ in range(450):
        torch.autograd.grad(model(images).logsumexp(1).sum(), list(model.parameters()))

def with_a_process():
    subprocess.run([sys.executable, "-c", "import torch"], check=True)

torch.set_num_threads(1)
print(*(timed(work) for work in (with_python, with_torch, with_a_process)))
"""


def unit() -> float:
    """Measure this machine's unit; its seconds."""
    return sum(parts())


def parts() -> list[float]:
    """Measure what the unit consists of: seconds with Python, with torch, and to start a process; the slower of two."""
    running = [subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    printed = [process.communicate()[0].split() for process in running]
    return [max(map(float, times)) for times in zip(*printed, strict=True)]


def judge(name: str, seconds: float, unit: float) -> tuple[bool, str]:
    """Compare a run with its budget: whether it takes too long, and the line that says how long it took."""
    budget, took = BUDGETS[name], seconds / unit
    verdict = f"above its budget by {took / budget - 1:.0%}" if took > budget else "within its budget"
    return took > TOO_LONG * budget, (
        f"{name}: {seconds:.0f} s, {took:.0f} units of {budget}: {verdict}. A unit is {unit:.2f} s on this machine."
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", choices=sorted(BUDGETS), help="fail if the run takes more than 1.25 times this budget")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--budget")
    if name and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget(name))


class Budget:
    """The time that a run takes, from the first process to the last."""

    def __init__(self, name: str) -> None:
        self._name, self._unit = name, unit()
        self._begun = time.monotonic()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> object:
        """Judge once xdist has ended its workers, which it does in this hook."""
        result = yield
        seconds = time.monotonic() - self._begun
        too_long, line = judge(self._name, seconds, (self._unit + unit()) / 2)
        session.config.get_terminal_writer().line(f"\n{line}", red=too_long)
        if too_long:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        return result


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(f"{unit():.3f}")
    else:
        name, seconds, before = sys.argv[1], *map(float, sys.argv[2:])
        too_long, line = judge(name, seconds, (before + unit()) / 2)
        print(line)
        sys.exit(too_long)
