"""Every test of the run store runs on both databases."""

from tests.ledger import conftest

url = conftest.url
