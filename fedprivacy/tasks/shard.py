"""A client's records, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """A client's data: one row for each record.

    >>> import fedprivacy as fp, torch
    >>> len(fp.Shard(torch.zeros(40, 3), torch.zeros(40)))
    40

    Attributes:
        inputs: shape [records, ...].
        targets: shape [records, ...].

    Raises:
        ValueError: they are not equally many.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError("The shard's inputs and targets differ in length; give one target for each record.")

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Shard:
        """The same shard on `device`."""
        return Shard(self.inputs.to(device), self.targets.to(device))
