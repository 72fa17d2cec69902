"""The clients that may be asked in a round: all clients with an account, except some."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set


class Eligible(Set[str]):
    """The client_ids of clients that may be asked; stored as the few exceptions, since most clients may be asked.

    Args:
        everybody: clients with an account; shared, not copied, so do not change it.
        closed: clients that may not be asked.
    """

    def __init__(self, everybody: Collection[str], closed: Iterable[str]) -> None:
        self.everybody = everybody
        self.closed = frozenset(closed)

    def __contains__(self, client_id: object) -> bool:
        return client_id not in self.closed and client_id in self.everybody

    def __iter__(self) -> Iterator[str]:
        return (client_id for client_id in self.everybody if client_id not in self.closed)

    def __len__(self) -> int:
        return len(self.everybody) - sum(client_id in self.everybody for client_id in self.closed)

    def same_as(self, other: Eligible) -> bool:
        """Tell whether both name the same clients of one shared population, which is compared by identity."""
        return self.everybody is other.everybody and self.closed == other.closed
