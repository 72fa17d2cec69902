"""Clipped sums of per-record gradients."""

from typing import TYPE_CHECKING

from fedprivacy._support.imports import names_of, when_asked

if TYPE_CHECKING:
    from fedprivacy.gradients.clipping import AutomaticClipping, Clipping, FlatClipping, PerLayerClipping
    from fedprivacy.gradients.doctor import check_frozen, check_model, check_on_blank
    from fedprivacy.gradients.engine import Clipped, GradientEngine
    from fedprivacy.gradients.models import (
        InPlaceError,
        Loss,
        LossShapeError,
        UnsupportedModelError,
        flat_parameters,
        trainable_parameters,
    )
    from fedprivacy.gradients.rules import register_rule
    from fedprivacy.gradients.structure import made_private
else:  # the names of the clippings are asked for by every `--help`, and need no torch
    __getattr__ = when_asked(__name__, "clipping", "models", "engine", "rules", "structure", "doctor")
    __dir__ = names_of(__name__)

__all__ = [
    "AutomaticClipping",
    "Clipped",
    "Clipping",
    "FlatClipping",
    "GradientEngine",
    "InPlaceError",
    "Loss",
    "LossShapeError",
    "PerLayerClipping",
    "UnsupportedModelError",
    "check_frozen",
    "check_model",
    "check_on_blank",
    "flat_parameters",
    "made_private",
    "register_rule",
    "trainable_parameters",
]
