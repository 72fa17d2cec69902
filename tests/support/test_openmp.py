"""Threads that wait sleep, so that a busy machine's cores are not burnt; the user's own choice stays."""

import re
import subprocess
import sys

import pytest
import torch

from tests.support.processors import environment

pytestmark = pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this torch has no OpenMP")


def rounds_waited(code, **variables):
    """Rounds of a loop in which a waiting thread burns its core, as GNU's OpenMP says when torch is imported."""
    inherited = {name: value for name, value in environment("native").items() if name != "OMP_WAIT_POLICY"}
    own = inherited | {"OMP_DISPLAY_ENV": "verbose"} | variables
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own).stderr
    found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", told)
    return [int(count) for count in found] or pytest.skip("this OpenMP is not GNU's")


CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"


def test_threads_that_wait_sleep_also_in_processes_started_from_here():
    assert set(rounds_waited("import fedprivacy, torch")) == {0}
    assert set(rounds_waited(f"import fedprivacy; {CHILD}")) == {0}


@pytest.mark.exhaustive
def test_what_the_user_has_set_stays_here_too():
    assert min(rounds_waited("import fedprivacy, torch", OMP_WAIT_POLICY="ACTIVE")) > 0
