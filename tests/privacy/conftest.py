"""Fixtures of the tests of whole runs."""

import pytest

from tests.flower.conftest import identity, keys, node

__all__ = ["identity", "keys", "node"]


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"
