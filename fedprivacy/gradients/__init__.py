"""Clipped sums of per-record gradients."""

from typing import TYPE_CHECKING

from fedprivacy._support.lazy import when_asked

if TYPE_CHECKING:
    from fedprivacy.gradients.checks.repair import made_private
    from fedprivacy.gradients.checks.supported import check_frozen, check_model, check_on_blank
    from fedprivacy.gradients.clipping import AutomaticClipping, Clipping, FlatClipping, PerLayerClipping
    from fedprivacy.gradients.engine import Clipped, GradientEngine, clipped_gradient_sum
    from fedprivacy.gradients.errors import InPlaceError, LossShapeError, UnsupportedModelError
    from fedprivacy.gradients.losses import Loss
    from fedprivacy.gradients.parameters import flat_parameters, trainable_parameters
    from fedprivacy.gradients.rules import register_rule
else:  # the names of the clippings are asked for by every `--help`, and need no torch
    __getattr__ = when_asked(
        __name__, "clipping", "errors", "losses", "parameters", "engine", "rules", "checks.supported", "checks.repair"
    )

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
    "clipped_gradient_sum",
    "flat_parameters",
    "made_private",
    "register_rule",
    "trainable_parameters",
]
