"""Clipped sums of per-record gradients."""

from fedprivacy.gradients.engine import clipped_gradient_sum, trainable_parameters
from fedprivacy.gradients.supported import UnsupportedModelError, check_model

__all__ = ["UnsupportedModelError", "check_model", "clipped_gradient_sum", "trainable_parameters"]
