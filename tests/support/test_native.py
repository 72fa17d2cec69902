"""Libraries and Linux serve a process as they should: freed memory stays, waiting threads sleep, and limits count."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedprivacy._support.native import attainable_bytes
from tests.support.processors import environment

# Memory that a step has freed

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
    return float(subprocess.check_output([sys.executable, "-c", STEPS, mode], text=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
@pytest.mark.exhaustive
def test_a_step_finds_the_memory_that_the_one_before_has_freed():
    assert page_faults("keep") < 10 < 1000 < page_faults("as it is")


# Threads that wait

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


@pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this torch has no OpenMP")
@pytest.mark.exhaustive
def test_threads_that_wait_sleep_soon_also_in_processes_started_from_here_and_the_user_s_choice_stays():
    found = counted(f"import fedprivacy; {LOAD}; {CHILD}")
    assert 0 < min(found) == max(found) <= DEFAULT / 10 and len(found) > 1
    assert counted(f"import fedprivacy; {LOAD}", GOMP_SPINCOUNT="77")[0] == 77
    assert min(counted(f"import fedprivacy; {LOAD}", OMP_WAIT_POLICY="ACTIVE")) > DEFAULT


# Memory that a process may hold

MB = 1 << 20
SECOND = ("memory.max", "memory.current", "inactive_file")
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.fixture
def machine(tmp_path):
    """A machine with 8,000 MB, of which 5,000 are available; this process holds 70."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {8000 << 10} kB\nMemAvailable:   {5000 << 10} kB\n")
    (tmp_path / "proc" / "self" / "statm").write_text(f"90000 {70 * MB // resource.getpagesize()} 5000 1 0 9 0\n")
    return tmp_path


def group(folder, limit, used, cached, names=SECOND):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cached}\n")


def of(machine, *lines):
    (machine / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    return attainable_bytes(machine) / MB - 70


def test_without_a_limit_it_is_what_the_machine_has_left_and_elsewhere_unknown(machine, tmp_path):
    assert attainable_bytes(machine) == 5070 * MB
    group(machine / "sys/fs/cgroup/user.slice", "max", 900 * MB, 0)
    assert of(machine, "0::/user.slice") == 5000
    assert attainable_bytes(tmp_path / "no Linux") is None


def test_a_limit_of_the_service_or_of_a_group_around_it_counts_and_its_cached_files_do_not(machine):
    groups = machine / "sys/fs/cgroup"
    group(groups / "system.slice/client.service", 3000 * MB, 2500 * MB, 400 * MB)
    assert of(machine, "0::/system.slice/client.service") == 900
    group(groups / "system.slice", 4000 * MB, 3800 * MB, 0)
    assert of(machine, "0::/system.slice/client.service") == 200
    group(groups / "memory/system.slice", 1000 * MB, 900 * MB, 50 * MB, FIRST)
    assert of(machine, "5:cpu,cpuacct:/", "4:memory:/system.slice/a.service", "0::/") == 150
    group(groups, 1000 * MB, 1100 * MB, 0)  # where a container finds its own limit
    assert of(machine, "0::/docker/of-the-host") == 0
