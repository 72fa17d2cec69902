"""The durable record of charges."""

from fedprivacy.ledger.schema import ChargeState
from fedprivacy.ledger.store import Account, Allowance, Ledger, LedgerError, database_file

__all__ = ["Account", "Allowance", "ChargeState", "Ledger", "LedgerError", "database_file"]
