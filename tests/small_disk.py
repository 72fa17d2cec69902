"""A real file system of 1 MB, for tests that fill a disk."""

import subprocess

import pytest


@pytest.fixture
def disk(tmp_path):
    """Where it is mounted."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mounted], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("only root mounts a file system")
    yield mounted
    subprocess.run(["umount", "-l", mounted], check=True)
