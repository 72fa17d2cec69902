"""The exceptions of the ledger."""


class LedgerError(ValueError):
    """The ledger cannot be opened, or holds something that contradicts what is asked, with the remedy."""


class AccountError(LedgerError):
    """One client's account contradicts what is asked; the others are not concerned."""
