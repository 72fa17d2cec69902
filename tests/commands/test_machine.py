"""A run says which machine computed it and how: in its folder, in a script and at the end of its output."""

import json

import pytest
import torch

import fedprivacy as fp
from tests.commands.running import fedprivacy

pytestmark = pytest.mark.usefixtures("undrawn")

JOB = {"rounds": 1, "epsilon": 5.0, "progress": False}


def test_a_run_names_it_in_its_folder_and_where_all_is_wanted_in_its_last_lines(tmp_path):
    options = ("--task", "cancer", "--clients", "3", "--rounds", "1")
    printed = fedprivacy("simulate", "--verbose", *options, cwd=tmp_path).stdout
    kept = json.loads((tmp_path / "runs" / "cancer-1" / "machine.json").read_text())
    machine = fp.open_run(tmp_path / "runs" / "cancer-1").machine
    assert kept["gradients"] == machine.gradients and machine.gradients.split(",")[0] == "program"
    assert kept["records"] == 256 and kept["torch"] == torch.__version__ and kept["noise"] == "numpy"
    assert f"This machine: {machine.line}." in printed


@pytest.mark.exhaustive
def test_what_was_not_decided_here_is_left_open_and_a_run_of_an_earlier_version_names_none(tmp_path):
    stacks = fp.simulate("cancer", clients=100, out=tmp_path / "stacks", **JOB).machine
    baseline = fp.simulate("cancer", clients=3, privacy=False, out=tmp_path / "run", **JOB | {"epsilon": None})
    assert (stacks.gradients, stacks.records, "gradients by" in stacks.line) == ("stacks of clients", 0, True)
    machine = baseline.machine
    assert (machine.gradients, machine.records, "gradients by" in machine.line) == ("", 0, False)
    (tmp_path / "run" / "machine.json").unlink()
    assert fp.open_run(baseline.folder).machine is None
