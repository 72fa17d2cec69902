"""`fedprivacy simulate --profile` and `fp.simulate(..., profile=True)`: where a run's time goes, by the real path."""

import json
import re

import pytest
import torch

import fedprivacy as fp
from fedprivacy.runs.records.folder import read_lines
from tests.commands.running import fedprivacy
from tests.house import DOORS, HOUSE, imports, module_name

pytestmark = pytest.mark.exhaustive

OPTIONS = ("--rounds", 2, "--local-steps", 2, "--clients", 3, "--task", "cancer")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the same run was profiled, and not."""
    place = tmp_path_factory.mktemp("profiled")
    (place / "printed").write_text(fedprivacy("simulate", *OPTIONS, "--profile", "--out", "with", cwd=place).stdout)
    fedprivacy("simulate", *OPTIONS, "--out", "without", cwd=place)
    return place


def test_the_run_is_the_same_and_the_command_ends_with_the_table_and_where_the_trace_is(place):
    assert read_lines(place / "with") == read_lines(place / "without")
    printed, table = (place / "printed").read_text(), (place / "with" / "profile.txt").read_text()
    assert table.rstrip() in printed
    assert re.search(r"Name +Self CPU % +Self CPU", table) and "aten::linalg_vector_norm" in table
    assert len(table.splitlines()) <= 40
    last = printed.splitlines()[-1]
    assert last.startswith("Trace: with/profile.json (open it in chrome://tracing, or at https://ui.perfetto.dev")


def test_the_trace_is_one_that_a_viewer_opens_and_has_neither_shapes_nor_places_in_the_code(place):
    trace = json.loads((place / "with" / "profile.json").read_text(), parse_constant=pytest.fail)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"] == "aten::linalg_vector_norm" for event in complete) > 2 * 2 * 3
    assert all(event["ts"] >= 0.0 and event["dur"] >= 0.0 for event in complete)
    told = set().union(*(event.get("args", {}) for event in complete))
    assert told <= {"External id", "Record function id", "Sequence number", "Fwd thread id", "Ev Idx", "Op count"}


def test_a_program_that_is_profiled_already_hears_so_before_anything_is_spent(tmp_path):
    with torch.profiler.profile(), pytest.raises(RuntimeError, match="being profiled already"):
        fp.simulate("cancer", clients=2, out=tmp_path / "run", profile=True, progress=False)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_refused_leaves_the_folder_it_names_alone(place):
    held = (place / "with" / "profile.json").read_bytes()
    fedprivacy("simulate", *OPTIONS, "--profile", "--out", "with", cwd=place, code=2)
    assert (place / "with" / "profile.json").read_bytes() == held


def test_no_module_that_a_deployment_loads_records():
    """One module names PyTorch's profiler, and neither a deployed server nor a client reaches it, however late."""
    entered = {module_name(path): imports(path) for path in HOUSE if path.stem not in DOORS}
    recording = {module_name(path) for path in HOUSE if "torch.profiler" in path.read_text()}
    assert recording == {"fedprivacy.simulation.profile"}
    new = {f"fedprivacy.{name}" for name in ("server.app", "flower.server.strategy", "flower.client.client_app")}
    reached = set()
    while new:
        reached |= new
        new = {name for module in new for name in entered[module] & entered.keys()} - reached
    assert "fedprivacy.flower.server.federated_run" in reached
    assert not reached & {"fedprivacy.simulation.simulate", "fedprivacy.simulation.profile"}
