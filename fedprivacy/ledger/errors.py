"""The exceptions of the ledger."""

from collections.abc import Iterable
from difflib import get_close_matches


class LedgerError(ValueError):
    """The ledger cannot be opened, or contradicts a request; the error gives the remedy."""


class AccountError(LedgerError):
    """One client's account contradicts a request; other clients are not affected."""


def no_dataset(ledger: str, dataset_id: str, known: Iterable[str]) -> LedgerError:
    """Return the error that a ledger does not know a dataset, with the known one that may have been meant."""
    known = list(known)
    meant = [name for name in known if name.endswith(f"/{dataset_id}")] or get_close_matches(dataset_id, known, 1)
    nearest = "".join(f" Did you mean {name}?" for name in meant[:1])
    return LedgerError(
        f"ledger {ledger} knows no dataset '{dataset_id}'; 'fedprivacy ledger show' lists them.{nearest}"
    )
