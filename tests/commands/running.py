"""The command line, as tests use it."""

import contextlib
import json
import os
import subprocess
import sys
from unittest import mock

from fedprivacy.commands.app import app
from tests.terminal import CliRunner

ENVIRONMENT = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}


def fedprivacy(*arguments, cwd, code=0, columns=120):
    """Run the command line in this process, which has loaded everything already, and return what it printed."""
    typed = [str(argument) for argument in arguments]
    as_a_module = ["__main__.py", *typed]  # as `python -m fedprivacy`, whatever runs the tests
    with contextlib.chdir(cwd), mock.patch.object(sys, "argv", as_a_module):
        run = CliRunner().invoke(app, typed, env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    assert run.exit_code == code, run.output
    return run


def started(*arguments, cwd, code=0):
    """Run the command line as a user does, in a process of its own, and return what it printed."""
    command = [sys.executable, "-m", "fedprivacy", *arguments]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert run.returncode == code, run.stderr
    return run


def summary(*arguments, cwd, run=fedprivacy):
    return json.loads(run("simulate", "--json", *arguments, cwd=cwd).stdout)


def unwrapped(text):
    """A text without the line breaks and spaces of its layout."""
    return " ".join(text.split())


def commands(command, *names):
    """Every command, with the words that call it."""
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)
