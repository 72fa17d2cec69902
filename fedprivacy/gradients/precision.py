"""Full float32 precision for matrix products, whatever the process has chosen for the rest."""

from __future__ import annotations

from threading import Lock
from types import TracebackType

import torch


class FullPrecision:
    """Matrix products in float32 proper while any thread is inside.

    TF32 and bfloat16 products round a sum of clipped gradients by up to 2^-8 of itself, far beyond the mechanism's
    allowance for rounding, and the norms that scaled them are not rounded with it.

    A process that has set the precision by backend (`torch.backends.*.fp32_precision`) keeps full precision
    afterwards: what it had chosen cannot be read back.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._chosen = Lock(), 0, "highest"

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._chosen = _chosen_precision()
                torch.set_float32_matmul_precision("highest")
            self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.set_float32_matmul_precision(self._chosen)


def _chosen_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by backend
        return "highest"


full_precision = FullPrecision()
"""The one of this process: the precision is a setting of the process."""
