"""The control vector that an algorithm's server half sends with every model, from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.training.algorithms import RoundTurnout
from fedprivacy.training.algorithms.algorithm import ServerHalf
from fedprivacy.training.local_round import CONTROL


@dataclass(slots=True)
class ServerControl:
    """The control of a run, which every averaged round moves.

    Attributes:
        value: the control that the next round sends, shape [d]; None: nothing yet.
        weights: public weights of all clients whose updates were averaged in any round, by client_id.
    """

    value: Tensor | None = None
    weights: dict[str, float] = field(default_factory=dict)

    def advance(  # noqa: PLR0917 - what a round is made of
        self,
        half: ServerHalf,
        start: Tensor,
        mean: Tensor,
        weights: Mapping[str, float],
        steps: int,
        learning_rate: float,
    ) -> None:
        """Advance the control by one round.

        Args:
            half: the server half of the round's algorithm.
            start: the round's model, shape [d].
            mean: the average of the updates, shape [d].
            weights: weights of the clients in the average, by client_id.
            steps: local steps of each client.
            learning_rate: learning rate of these steps.
        """
        self.weights |= weights
        share = sum(weights.values()) / sum(self.weights.values())
        turnout = RoundTurnout(share, steps, learning_rate)
        before = None if self.value is None else self.value.double()
        self.value = half.advanced(before, start.double(), mean.double(), turnout).float()

    @property
    def record(self) -> dict[str, ArrayRecord]:
        return {} if self.value is None else {CONTROL: ArrayRecord({CONTROL: Array(self.value.numpy())})}

    @property
    def facts(self) -> dict[str, float]:
        """The JSON part of the state: the weights."""
        return self.weights

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The array part of the state."""
        return {} if self.value is None else {CONTROL: self.value.numpy()}

    @classmethod
    def of(cls, facts: Mapping[str, float], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Restore the state from its `facts` and `arrays`."""
        return cls(torch.from_numpy(arrays[CONTROL]) if arrays else None, dict(facts))


def flat(arrays: Mapping[str, Array], names: tuple[str, ...]) -> Tensor:
    """A model's named parameters as one vector of float64, shape [d]."""
    return torch.from_numpy(np.concatenate([arrays[name].numpy().ravel().astype(np.float64) for name in names]))
