"""What the tests of whole runs share."""

import itertools

import pytest

from fedprivacy.deploy.keys import write_client_key
from fedprivacy.flower import InProcessGrid, private_client
from fedprivacy.mechanisms.keystream import Keystream
from tests.flower.asked import node_of


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A client's key, as a SuperNode has it."""
    return write_client_key(tmp_path_factory.mktemp("keys"), "hospital")


@pytest.fixture
def identity():
    """Flower's messages read the identity of the process, which a grid sets."""
    InProcessGrid(private_client(), 1, {})


@pytest.fixture
def node(tmp_path, keys, identity):
    """A data owner's node configuration."""
    return node_of(tmp_path, keys.private_key)


@pytest.fixture
def repeatable(monkeypatch):
    """Secret noise is another one at each draw, and the same in every run of a test whose outcome depends on it."""
    draws = itertools.count()
    monkeypatch.setattr(Keystream, "secret", lambda: Keystream.from_seed(next(draws), "a test"))
