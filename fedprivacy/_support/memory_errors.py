"""Errors that say that memory ran out: no single record's fault, and no reason to leave one out.

A part of a batch takes more memory the more records are in it. If all its records were dropped when it does not fit,
one more record would take the others out of the sum.
"""

from __future__ import annotations

import torch

_SAID = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""Texts in torch's `RuntimeError` about memory: its allocators on a CPU, CUDA, cuBLAS, cuDNN, C++."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's, an accelerator's, or torch's on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    )
