"""What the tests of whole runs share."""

import pytest


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"
