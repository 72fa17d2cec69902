"""The durable record of charges."""

from fedprivacy.ledger.schema import ChargeState
from fedprivacy.ledger.store import Account, Allowance, Ledger, LedgerError

__all__ = ["Account", "Allowance", "ChargeState", "Ledger", "LedgerError"]
