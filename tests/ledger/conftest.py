"""Ledgers on both databases."""

import pytest

from fedprivacy.ledger import Ledger
from tests.ledger.acts import ALLOWANCE, copied, fill


def _new(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    copied(Ledger, url).close()
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def url(request, tmp_path):
    """A ledger's URL, for what does not depend on the database: the soak repeats it on PostgreSQL."""
    return _new(request, tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def transactional_url(request, tmp_path):
    """A ledger's URL, for what each database does in its own way: locks, commits, triggers, tables."""
    return _new(request, tmp_path)


@pytest.fixture
def filled(url):
    """A ledger with an entry of every kind and a signed head."""
    ledger = copied(fill, url)
    yield ledger
    ledger.close()


@pytest.fixture
def ledger(url):
    """A ledger with budgets for three datasets."""
    opened = Ledger(url)
    opened.open_budgets(dict.fromkeys("abc", ALLOWANCE))
    yield opened
    opened.close()
