"""The durable record of charges."""

from typing import TYPE_CHECKING

from fedprivacy.lazy import when_asked

if TYPE_CHECKING:
    from fedprivacy.ledger.schema import ChargeState
    from fedprivacy.ledger.store import NOTHING_SPENT, Account, Allowance, Ledger, LedgerError, database_file
else:  # the command line imports this package, and most commands need no database
    __getattr__ = when_asked(__name__, "schema", "store")

__all__ = ["NOTHING_SPENT", "Account", "Allowance", "ChargeState", "Ledger", "LedgerError", "database_file"]
