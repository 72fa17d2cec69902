"""Every test of the ledger runs on both databases."""

import pytest

from tests.ledger.acts import fill


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path / 'deep' / 'ledger.db'}"


@pytest.fixture
def filled(url):
    """A ledger with an entry of every kind and a signed head."""
    ledger = fill(url)
    yield ledger
    ledger.close()
