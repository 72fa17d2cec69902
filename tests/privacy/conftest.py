"""Fixtures of the tests of whole runs."""

import pytest

from tests.flower.conftest import identity, keys, node, repeatable

__all__ = ["identity", "keys", "node", "repeatable"]


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"
