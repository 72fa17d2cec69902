"""The global model of a run, from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from flwr.app import Array, ArrayRecord

from fedprivacy.flower.server.checkpoint import Checkpoint
from fedprivacy.training.optimizers import MovingAverage


@dataclass
class GlobalModel:
    """What the next round sends, and the average of what rounds sent, which is evaluated and kept."""

    arrays: ArrayRecord
    average: MovingAverage

    @classmethod
    def new(cls, arrays: ArrayRecord, decay: float) -> Self:
        """The model of a run that begins, at these arrays."""
        average = MovingAverage(decay)
        average.begin(arrays.to_torch_state_dict())
        return cls(arrays, average)

    @classmethod
    def restored(cls, checkpoint: Checkpoint, decay: float) -> Self:
        """The model of a run that goes on, as it was when the checkpoint was taken."""
        average = MovingAverage(decay)
        average.begin({name: torch.from_numpy(value) for name, value in checkpoint.average.items()})
        average.iterates = checkpoint.iterates
        return cls(ArrayRecord({name: Array(value) for name, value in checkpoint.arrays.items()}), average)

    @property
    def kept(self) -> ArrayRecord:
        """The average as it is now."""
        return as_arrays(self.average.average)

    def advance(self, arrays: ArrayRecord) -> None:
        """Go on from the next iterate."""
        self.arrays = arrays
        self.average.add(arrays.to_torch_state_dict())


def as_arrays(parameters: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Parameters as they cross."""
    return ArrayRecord({name: Array(parameter.numpy()) for name, parameter in parameters.items()})
