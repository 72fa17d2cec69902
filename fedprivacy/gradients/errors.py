"""What is wrong with a model or a loss, named before any record is read."""

from __future__ import annotations


class UnsupportedModelError(ValueError):
    """A model that DP-SGD cannot train soundly, with the layer's name and the remedy."""


class InPlaceError(UnsupportedModelError):
    """A layer's input was changed in place after the layer had read it, so the layer's gradient cannot be known."""


class LossShapeError(ValueError):
    """A loss that does not return one value for each record."""
