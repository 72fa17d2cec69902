"""Modes of layers, train or eval: they decide whether dropout draws and whether BatchNorm mixes records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Modes:
    """Modes of a model's layers, as they were when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [(layer, layer.training) for layer in model.modules()]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Give each layer its mode of then, and afterwards that of now: a loop may call `train()` in every epoch."""
        now = [(layer, layer.training) for layer, mode in self._layers if layer.training != mode]
        try:
            for layer, mode in now:
                layer.training = not mode
            yield
        finally:
            for layer, mode in now:
                layer.training = mode
