"""Memory that a process may hold, as Linux and the limits of its services say it."""

import resource

import pytest

from fedprivacy._support.native import attainable_bytes

MB = 1 << 20
TWO, ONE = (
    ("memory.max", "memory.current", "inactive_file"),
    ("limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
)


@pytest.fixture
def machine(tmp_path):
    """A machine with 8,000 MB, of which 5,000 are available; this process holds 70."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {8000 << 10} kB\nMemAvailable:   {5000 << 10} kB\n")
    (tmp_path / "proc" / "self" / "statm").write_text(f"90000 {70 * MB // resource.getpagesize()} 5000 1 0 9 0\n")
    return tmp_path


def group(folder, limit, used, cached, names=TWO):
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "" if names is TWO else "memory."
    (folder / f"{prefix}{names[0]}").write_text(f"{limit}\n")
    (folder / f"{prefix}{names[1]}").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cached}\n")


def of(machine, *lines):
    (machine / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    return attainable_bytes(machine) / MB - 70


def test_without_a_limit_it_is_what_the_machine_has_left(machine):
    assert attainable_bytes(machine) == 5070 * MB
    assert of(machine, "0::/user.slice") == 5000
    group(machine / "sys/fs/cgroup/user.slice", "max", 900 * MB, 0)
    assert of(machine, "0::/user.slice") == 5000


def test_a_limit_of_the_service_or_of_a_group_around_it_counts_and_its_cached_files_do_not(machine):
    groups = machine / "sys/fs/cgroup"
    group(groups / "system.slice/client.service", 3000 * MB, 2500 * MB, 400 * MB)
    assert of(machine, "0::/system.slice/client.service") == 900
    group(groups / "system.slice", 4000 * MB, 3800 * MB, 0)
    assert of(machine, "0::/system.slice/client.service") == 200
    group(groups / "system.slice", 4000 * MB, 4100 * MB, 0)
    assert of(machine, "0::/system.slice/client.service") == 0


def test_a_container_finds_its_limit_in_the_mounted_folder_itself(machine):
    group(machine / "sys/fs/cgroup", 2000 * MB, 500 * MB, 100 * MB)
    assert of(machine, "0::/") == 1600
    assert of(machine, "0::/docker/of-the-host") == 1600


def test_limits_of_the_first_version_count_too(machine):
    group(machine / "sys/fs/cgroup/memory/system.slice", 1000 * MB, 300 * MB, 50 * MB, ONE)
    assert of(machine, "5:cpu,cpuacct:/", "4:memory:/system.slice/a.service", "0::/") == 750


def test_where_linux_does_not_say_it_it_is_unknown(tmp_path):
    assert attainable_bytes(tmp_path) is None
