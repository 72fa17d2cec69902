"""Clipped sums of per-record gradients."""

from fedprivacy.gradients.engine import LossShapeError, clipped_gradient_sum, flat_parameters, trainable_parameters
from fedprivacy.gradients.supported import UnsupportedModelError, check_frozen, check_model, check_on_blank

__all__ = [
    "LossShapeError",
    "UnsupportedModelError",
    "check_frozen",
    "check_model",
    "check_on_blank",
    "clipped_gradient_sum",
    "flat_parameters",
    "trainable_parameters",
]
