"""The exceptions of the ledger."""


class LedgerError(ValueError):
    """The ledger cannot be opened, or contradicts a request; the error gives the remedy."""


class AccountError(LedgerError):
    """One client's account contradicts a request; other clients are not affected."""
