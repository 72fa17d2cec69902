"""Privacy losses of every client of a run at one moment; a reading costs only what the changed clients cost.

A round may ask a thousand of a hundred thousand clients. A reading shares all others with the previous reading, and
knows which they are: neither a round nor an observer that keeps every round pays for clients that were not asked.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Set, ValuesView
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.values.spent import ClientSpent

_MOST_APART = 1 / 8
"""Maximum share of the clients that a reading keeps apart from the shared ones; beyond it, copying all is cheaper."""


class PopulationSpent(Mapping[str, ClientSpent]):
    """Every client's privacy loss at one moment, by client_id and in the order of the client_ids. It never changes.

    Args:
        clients: privacy loss of each client, by client_id.

    Attributes:
        places: client_id -> its place in that order; the same object in every reading of the same clients.
    """

    __slots__ = ("_apart", "_epsilons", "_exhausted", "_moment", "_shared", "places")

    def __init__(self, clients: Mapping[str, ClientSpent]) -> None:
        self._shared = dict(sorted(clients.items()))
        self._apart: dict[str, ClientSpent] = {}
        self.places = {client_id: place for place, client_id in enumerate(self._shared)}
        self._moment = _Moment()
        self._epsilons: NDArray[np.float64] | None = None
        self._exhausted: tuple[str, ...] | None = None

    @classmethod
    def of(cls, clients: Mapping[str, ClientSpent]) -> PopulationSpent:
        """Return a reading of clients given by client_id; a reading is returned as it is."""
        return clients if isinstance(clients, PopulationSpent) else cls(clients)

    def __getitem__(self, client_id: str) -> ClientSpent:
        return self._apart[client_id] if client_id in self._apart else self._shared[client_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shared)

    def __len__(self) -> int:
        return len(self._shared)

    def items(self) -> ItemsView[str, ClientSpent]:
        """Every client with its client_id."""
        return self._whole.items()

    def values(self) -> ValuesView[ClientSpent]:
        return self._whole.values()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._whole})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._whole,)

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """Every client's privacy loss in nats, by place; not to be written to."""
        if self._epsilons is None:
            self._epsilons = np.fromiter((client.epsilon for client in self.values()), np.float64, len(self))
        return self._epsilons

    @property
    def exhausted(self) -> tuple[str, ...]:
        """Clients with nothing left of their budget."""
        if self._exhausted is None:
            self._exhausted = tuple(client_id for client_id, client in self.items() if client.exhausted)
        return self._exhausted

    def updated(self, changed: Mapping[str, ClientSpent]) -> PopulationSpent:
        """Return the next reading, in which these clients, known or new, are as given and all others are unchanged."""
        if not changed:
            return self
        known = changed.keys() <= self.places.keys()
        after = self._with(changed) if known else PopulationSpent({**self._whole, **changed})
        if self._moment.then is None:  # else another reading was taken after this one
            self._moment.then = frozenset(changed), after._moment
        return after

    def changed_since(self, before: PopulationSpent | None) -> list[str]:
        """List the clients that are new or differ from an earlier reading, in the order of the client_ids."""
        if before is None:
            return list(self)
        looked_at = self._perhaps_changed_since(before)
        return sorted(client_id for client_id in looked_at if before.get(client_id) != self[client_id])

    def includes(self, before: PopulationSpent) -> bool:
        """Return whether every client of another reading is in this one."""
        return before.places is self.places or before.places.keys() <= self.places.keys()

    def _perhaps_changed_since(self, before: PopulationSpent) -> Iterable[str]:
        """Return clients that may have changed; all, if this reading did not come from that one by `updated`."""
        changed: set[str] = set()
        moment = before._moment
        while moment is not self._moment:
            if moment.then is None:
                return self
            some, moment = moment.then
            changed |= some
        return changed

    @property
    def _whole(self) -> dict[str, ClientSpent]:
        return self._shared | self._apart if self._apart else self._shared

    def _with(self, changed: Mapping[str, ClientSpent]) -> PopulationSpent:
        """Return the same clients, some of them changed."""
        after: PopulationSpent = object.__new__(PopulationSpent)
        apart = {**self._apart, **changed}
        crowded = len(apart) > _MOST_APART * len(self)
        after._shared, after._apart = (self._shared | apart, {}) if crowded else (self._shared, apart)
        after.places, after._moment = self.places, _Moment()
        after._epsilons = self._epsilons if self._epsilons is None else self._epsilons_with(changed, self._epsilons)
        after._exhausted = self._exhausted if self._exhausted is None else _exhausted_with(changed, self._exhausted)
        return after

    def _epsilons_with(self, changed: Mapping[str, ClientSpent], before: NDArray[np.float64]) -> NDArray[np.float64]:
        epsilons = before.copy()
        epsilons[[self.places[client_id] for client_id in changed]] = [client.epsilon for client in changed.values()]
        return epsilons


def _exhausted_with(changed: Mapping[str, ClientSpent], before: tuple[str, ...]) -> tuple[str, ...]:
    now = {client_id for client_id, client in changed.items() if client.exhausted}
    if now == changed.keys() & set(before):
        return before
    return tuple(sorted([*(client_id for client_id in before if client_id not in changed), *now]))


class _Moment:
    """The moment of a reading: it links to the next moment, and is freed with the last earlier reading."""

    __slots__ = ("then",)

    def __init__(self) -> None:
        self.then: tuple[Set[str], _Moment] | None = None  # who has changed until the moment after it
