"""Runs, and a dashboard of them, for all tests of dashboards."""

import functools

import pytest

from fedprivacy.dashboard import web_app
from tests.dashboard.shown import asking, some_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with a few runs; no test changes them."""
    return some_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def ask(runs):
    """Asks a dashboard of these runs."""
    return asking(runs)


@pytest.fixture(scope="session", autouse=True)
def bundled_once():
    """Vega is bundled once for all dashboards of this process: it takes two seconds of a core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_app, "bundled_vega", functools.cache(web_app.bundled_vega))
        yield
