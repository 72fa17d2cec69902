"""The one exception of the ledger."""


class LedgerError(ValueError):
    """The ledger cannot be opened, or holds something that contradicts what is asked, with the remedy."""
