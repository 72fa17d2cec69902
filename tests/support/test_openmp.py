"""Threads that wait sleep soon, so that a busy machine's cores are not burnt; the user's own choice stays."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.processors import environment

pytestmark = pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this torch has no OpenMP")

DEFAULT = 300_000
"""Count of GNU's OpenMP."""

LOADED = Path("/proc/self/maps").read_text().split() if Path("/proc/self/maps").exists() else ()
LIBRARY = next((word for word in LOADED if "libgomp" in word), None)
"""The OpenMP that torch has loaded here: it speaks when it is loaded, and all of torch takes two seconds."""

LOAD = f"import ctypes; ctypes.CDLL({LIBRARY!r})"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOAD!r}], check=True)"


def counted(code, **variables):
    """The number that a waiting thread counts to before it sleeps, as GNU's OpenMP prints it on being loaded."""
    inherited = {k: v for k, v in environment("native").items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    own = inherited | {"OMP_DISPLAY_ENV": "verbose"} | variables
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own).stderr
    found = [int(count) for count in re.findall(r"GOMP_SPINCOUNT = '(\d+)'", told)]
    return found or pytest.skip("this OpenMP is not GNU's")


@pytest.mark.exhaustive
def test_threads_that_wait_sleep_soon_but_not_at_once_also_in_processes_started_from_here():
    found = counted(f"import fedprivacy; {LOAD}; {CHILD}")
    assert 0 < min(found) == max(found) <= DEFAULT / 10 and len(found) > 1


@pytest.mark.exhaustive
def test_what_the_user_has_chosen_stays():
    assert counted(f"import fedprivacy; {LOAD}", GOMP_SPINCOUNT="77")[0] == 77
    assert min(counted(f"import fedprivacy; {LOAD}", OMP_WAIT_POLICY="ACTIVE")) > DEFAULT
