"""Fixtures of commands' tests: runs that draw nothing, and a command in an empty folder."""

import sys

import pytest

from fedprivacy.commands.app import app
from fedprivacy.runs.records.folder import REPORT
from fedprivacy.server import recorder
from tests.terminal import CliRunner


@pytest.fixture
def undrawn(monkeypatch):
    """Runs leave no figure and an empty report, which the command looks for: to draw them takes most of their time."""
    monkeypatch.setattr(recorder, "draw", lambda history, folder: (folder / REPORT).touch())


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """A command in an empty folder: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["fedprivacy"])

    def invoke(*arguments, stdin=None):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return invoke
