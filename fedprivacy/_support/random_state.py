"""States of this process's global random generators, so that a resumed run draws what it would have drawn.

Strategies sample clients from `random` or from numpy's global generator; a new model draws its weights from torch. The
noise that protects records comes from none of them (`fedprivacy.mechanisms.keystream`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of the three global generators, as JSON types; torch's, of the CPU, in hexadecimal."""

    python: list[Any]
    numpy: dict[str, Any]
    torch: str

    @classmethod
    def now(cls) -> Self:
        """The present states."""
        version, words, gauss = random.getstate()
        numpy = np.random.get_state(legacy=False)
        words_of_numpy = {name: np.asarray(value).tolist() for name, value in numpy["state"].items()}
        torch_bytes = torch.get_rng_state().numpy().tobytes()
        return cls([version, list(words), gauss], numpy | {"state": words_of_numpy}, torch_bytes.hex())

    def restore(self) -> None:
        """Set the generators of this process to these states."""
        version, words, gauss = self.python
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(self.numpy)
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(self.torch), dtype=torch.uint8))
