"""What a run looks like from outside: one immutable record a round, and the whole history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedprivacy.accountant import ClientSpent


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Everything that a finished round tells.

    Attributes:
        round: counted from 1; 0 is the state before the first round.
        metrics: of the global model on the server's public records.
        spent: every enrolled client's privacy loss after the round, by client_id.
        participants: clients whose update was averaged.
        failures: clients whose update was asked for and not used, with the reason.
    """

    round: int
    metrics: Mapping[str, float]
    spent: Mapping[str, ClientSpent]
    participants: tuple[str, ...]
    failures: Mapping[str, str]

    @property
    def max_epsilon(self) -> float:
        """The largest privacy loss of a client."""
        return max((client.epsilon for client in self.spent.values()), default=0.0)

    @property
    def exhausted(self) -> tuple[str, ...]:
        """Clients with nothing left of their budget."""
        return tuple(client_id for client_id, client in self.spent.items() if client.exhausted)


Observer = Callable[[RoundRecord], None]
"""Is told of every finished round: the only way to extend the loop."""
