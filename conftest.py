"""What the examples in docstrings share: a folder of their own to write to."""

import pytest

import fedprivacy  # noqa: F401 - before torch computes anything, as docs/explanation/gradients.md asks of everybody

pytest_plugins = ("tests.lanes", "tests.times")

SLOW = {
    "fedprivacy.runs.callbacks.Callback",
    "fedprivacy.runs.callbacks.EarlyStopping",
    "fedprivacy.runs.records.comparison.compare",
    "fedprivacy.runs.recommendation.recommend",
    "fedprivacy.runs.records.run.Run",
    "fedprivacy.simulation.ask.Ask.frequent",
    "fedprivacy.runs.records.listing.list_runs",
    "fedprivacy.simulation.simulate.simulate",
    "fedprivacy.simulation.sweeps.sweep",
}
"""Examples that take long by nature: a training, a recommendation."""

SLOWEST = "fedprivacy.audit.training_audit.audit_training"
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
