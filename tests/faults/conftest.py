"""What the tests of faults share with those of whole runs."""

from tests.flower.conftest import ledger_url

__all__ = ["ledger_url"]
