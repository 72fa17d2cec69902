"""Products are strict whichever door leads to fedprivacy; where that comes too late, it is said, with the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.processors import environment

SHOW = "from fedprivacy._support.native import matrix_library; print(matrix_library().strict)"
COMPUTED = "import torch; torch.randn(8, 8) @ torch.randn(8, 8)"
BY_PLACE = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
"""True on Intel's processors: MKL's products of a small network with AVX2, if they are not strict, depend there on a
row's place. On an EPYC they do not.
"""

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch multiplies without MKL")


def run(code, kind="native", **variables):
    """Run code in a fresh process, without the mode that this one has set, and return what it prints."""
    own = environment(kind) | variables
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own)


def test_products_are_strict_though_torch_is_imported_first_and_in_processes_started_from_here():
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}])"
    assert run(f"import torch; from fedprivacy.gradients import rules; {SHOW}; {child}").stdout == "True\n" * 2


@pytest.mark.exhaustive
def test_what_the_user_has_set_stays():
    assert run(f"import os, fedprivacy; print(os.environ['MKL_CBWR']); {SHOW}", MKL_CBWR="COMPATIBLE").stdout == (
        "COMPATIBLE\nFalse\n"
    )


NOTEBOOK = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
{first}
import fedprivacy as fp
from torch import nn
loss = nn.CrossEntropyLoss(reduction="none")
records = torch.randn(300, 8), torch.arange(300) % 3
for _ in range(2):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    given = dict(delta=1e-3, sampling_rate=0.5, steps=3, size_public=True, progress=False)
    fp.train(model, loss, records, epsilon=5.0, **given)
"""


@pytest.mark.exhaustive
def test_a_notebook_in_which_torch_had_computed_is_told_once_and_stays_fast():
    """On a processor with AVX2, MKL's products then go by a row's place."""
    told = run(NOTEBOOK.format(first=COMPUTED), "avx2").stderr
    assert told.count("exact, but slow (program, one row at a time)") == BY_PLACE
    assert ("import fedprivacy first or set MKL_CBWR=AUTO,STRICT" in told) is BY_PLACE


@pytest.mark.exhaustive
def test_the_doctor_says_what_this_machine_does_and_why_not_faster():
    command = [sys.executable, "-m", "fedprivacy", "doctor"]
    own = environment("avx2-not-strict") | {"NO_COLOR": "1", "COLUMNS": "80"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    first, *others = said.stdout.splitlines()
    rows = "one row at a time, " * BY_PLACE
    assert first.startswith(f"This machine: gradients by program, {rows}256 records at a time; ")
    assert "AVX2" in first and "not strict" in first
    assert ["program" in line for line in others if line.startswith("Not used: ")] == [True] * BY_PLACE
