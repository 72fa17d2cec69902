"""Memory errors: when a batch does not fit, this must not be taken for one record's fault.

A part of a batch takes more memory the more records are in it. If all its records were dropped when it does not fit,
one more record would take the others out of the sum.
"""

from __future__ import annotations

import torch
from torch import nn

from fedprivacy.gradients.parameters import trainable_parameters

_PARAMETERS_IN_TRAINING = 10
"""Bytes that a private step takes at least, in bytes of the trained parameters: weights, sums, noise and a part's own
gradients. Measured for large linear layers: 9.7, and 13.8 while the engine is prepared."""

_SAID = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""Texts in torch's `RuntimeError` about memory: its allocators on a CPU, CUDA, cuBLAS, cuDNN, C++."""


def training_bytes(model: nn.Module) -> int:
    """Return how many bytes of memory a private step on this model takes at least, whatever its batch."""
    return _PARAMETERS_IN_TRAINING * sum(parameter.nbytes for parameter in trainable_parameters(model).values())


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's, an accelerator's, or torch's on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    )
