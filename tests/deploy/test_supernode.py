"""A process of a SuperNode ends when the SuperNode does, so that its unit starts it again."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from fedprivacy.deploy.supernode import run

def main():
    threading.Thread(target=threading.Event().wait).start()
    print("began")
    {}

run(main)
"""


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ("raise ConnectionError('certificate verify failed')", 1, "ConnectionError: certificate verify failed"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no key')", 1, "no key"),
        ("pass", 0, ""),
    ],
)
def test_the_process_ends_with_its_program_although_a_thread_of_it_goes_on(ends, code, said):
    command = [sys.executable, "-c", PROGRAM.format(ends)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "began\n")
    assert said in done.stderr


def test_it_takes_the_options_of_flower_s_own():
    command = [sys.executable, "-m", "fedprivacy.deploy.supernode", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--root-certificates" in done.stdout
