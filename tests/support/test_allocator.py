"""Freed memory stays in a process that trains."""

import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import numpy as np
from fedprivacy._support.native import keep_freed_memory

def step():
    blocks = [np.empty(15 * 2**20, dtype=np.uint8) for _ in range(3)]
    for block in blocks:
        block[:] = 1

if sys.argv[1] == "keep":
    assert keep_freed_memory() == keep_freed_memory()
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
"""


def page_faults(mode):
    """Number of pages that a step has to ask the system for."""
    run = subprocess.run([sys.executable, "-c", STEPS, mode], capture_output=True, text=True, check=True)
    return float(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
@pytest.mark.exhaustive
def test_a_step_finds_the_memory_that_the_one_before_has_freed():
    assert page_faults("keep") < 10 < 1000 < page_faults("as it is")
