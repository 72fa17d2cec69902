"""Memory that ran out: of a batch that is no record's fault, and must not be taken for one.

How much a part of a batch takes depends on how many records are in it. If all of them counted for nothing where it does
not fit, one record more would take the others out of the sum.
"""

from __future__ import annotations

import torch

_SAID = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""What torch says of it in a `RuntimeError`: its allocators on a CPU, CUDA, cuBLAS, cuDNN, C++."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, an accelerator's, or that of torch's allocator on a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
    )
