"""Set-up of the examples in docstrings, which share a folder of their own; and collection of tests and examples."""

import gc

import pytest

import fedprivacy  # noqa: F401 - before torch computes anything, as docs/explanation/gradients.md asks of everybody

pytest_plugins = ("tests.lanes", "tests.leftovers", "tests.small_disk", "tests.times", "tests.reached", "tests.pace")

gc.disable()  # until all modules are imported: looking for garbage meanwhile takes a second, and there is none

SLOW = {
    "fedprivacy.runs.callbacks.Callback",
    "fedprivacy.runs.callbacks.EarlyStopping",
    "fedprivacy.runs.records.comparison.compare",
    "fedprivacy.runs.recommendation.recommend",
    "fedprivacy.runs.records.run.Run",
    "fedprivacy.runs.records.catalogue.list_runs",
    "fedprivacy.simulation.simulate.simulate",
    "fedprivacy.simulation.sweeps.sweep",
}
"""Examples that take long by nature: a training, a recommendation."""

SLOWEST = "fedprivacy.audit.auditor.audit_training"
"""The example that is a whole audit."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Examples cannot mark themselves."""
    for item in items:
        if item.name in SLOW:
            item.add_marker("exhaustive")
        elif item.name == SLOWEST:
            item.add_marker("soak")


@pytest.fixture(autouse=True)
def _own_folder_for_examples(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Ask only a module that has examples for them: pytest imports whatever it asks."""
    found = yield
    return [each for each in found if type(each) is pytest.Module or ">>> " in file_path.read_text()]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """From now on, look for garbage among what the tests make, and not among all that was imported."""
    gc.freeze()
    gc.enable()
