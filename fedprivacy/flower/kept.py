"""What simulated clients keep from round to round: with the engine, which writes it into the run's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.flower.client.kept import KeptFor

_STATE, _FACTS = "fedprivacy.kept", "fedprivacy.kept-for"


@dataclass(frozen=True, slots=True)
class KeptInState:
    """In the state that Flower keeps for a simulated client, from which `KeptModels` takes it."""

    state: RecordDict

    def load(self, whose: KeptFor) -> Tensor | None:
        """What was kept last for the algorithm."""
        facts, arrays = self.state.get(_FACTS), self.state.get(_STATE)
        if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            return None
        return torch.from_numpy(arrays["own"].numpy()) if facts["algorithm"] == whose.algorithm else None

    def keep(self, whose: KeptFor, own: Tensor) -> None:
        """Keep it in the place of what was there."""
        self.state[_FACTS] = ConfigRecord({"algorithm": whose.algorithm})
        self.state[_STATE] = ArrayRecord({"own": Array(own.cpu().numpy())})


@dataclass(slots=True)
class KeptModels:
    """What all clients of a simulation keep.

    Attributes:
        algorithm: in whose rounds, with its settings.
        own: vectors of shape [d], by client_id.
    """

    algorithm: str = ""
    own: dict[str, Tensor] = field(default_factory=dict)

    def of(self, algorithm: str) -> dict[str, Tensor]:
        """What is kept for an algorithm; where another one was at work before, nothing."""
        if algorithm != self.algorithm:
            self.algorithm, self.own = algorithm, {}
        return self.own

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, as a checkpoint holds it."""
        return {client_id: own.numpy() for client_id, own in self.own.items()}

    def restore(self, algorithm: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what a checkpoint holds."""
        self.algorithm = algorithm
        self.own = {client_id: torch.from_numpy(own) for client_id, own in arrays.items()}

    def lend(self, client_id: str, state: RecordDict) -> None:
        """Let a client that gets messages find what it kept."""
        if client_id in self.own:
            KeptInState(state).keep(KeptFor("", self.algorithm, 0), self.own[client_id])

    def take(self, client_id: str, state: RecordDict) -> None:
        """Take in what it has kept since."""
        facts = state.get(_FACTS)
        if isinstance(facts, ConfigRecord):
            algorithm = str(facts["algorithm"])
            own = KeptInState(state).load(KeptFor("", algorithm, 0))
            if own is not None:
                self.of(algorithm)[client_id] = own
