"""What the tests of whole runs share."""

import pytest

from tests.flower.conftest import identity

__all__ = ["identity"]


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"
