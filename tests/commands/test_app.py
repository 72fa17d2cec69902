"""The command line as a whole: its version, its completion, its help."""

import os
import subprocess
import sys

import fedprivacy as fp
from tests.commands.running import ENVIRONMENT, fedprivacy


def test_the_version_is_shown(tmp_path):
    assert fedprivacy("--version", cwd=tmp_path).stdout == f"fedprivacy {fp.__version__}\n"


def completed(*words):
    """What the shell offers after these words, the last one of them unfinished."""
    code = "import sys; sys.argv = ['fedprivacy']; from fedprivacy.commands.app import app; app()"
    asked = {"_FEDPRIVACY_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT | asked, text=True).split()


def test_the_shell_completes_commands_and_settings(tmp_path):
    assert completed("fedprivacy", "led") == ["ledger"]
    assert completed("fedprivacy", "simulate", "--strat") == ["--strategy"]


def test_completion_is_installed_for_the_shell_of_the_user(tmp_path):
    home = {"HOME": str(tmp_path), "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "fedprivacy", "--install-completion", "bash"]
    run = subprocess.run(command, env=os.environ | home, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "completion" in (tmp_path / ".bashrc").read_text()
