"""Profiles a simulation with PyTorch's profiler: a trace and a table of its operations, in the run's folder.

How long an operation takes, and the launch of a GPU's kernel, tell how many records a step drew, which is private in a
deployment. So a profile is for whoever holds all records: only this module records one, of a simulation.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedprivacy._support.durable import write_durably

log = logging.getLogger("fedprivacy.server")

TRACE = "profile.json"
TABLE = "profile.txt"

_ROWS = 25
"""Number of operations in the table, those with the most time of their own first."""

_NAME = 30
"""Width of the column of names, in characters."""


@contextmanager
def profiling(folder: Path) -> Iterator[None]:
    """Profile the run that the block is, and write both files once it has ended; a run that fails leaves none.

    A run does not fail because its profile cannot be written.

    Args:
        folder: the run's.

    Raises:
        RuntimeError: something in this process is being profiled already: PyTorch crashes where a profiler begins
            within another.
    """
    if torch.autograd.profiler._is_profiler_enabled:
        raise RuntimeError("this process is being profiled already; profile one run at a time.")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler announces itself
    with torch.profiler.profile() as profiler:
        yield
    operations = profiler.key_averages()
    device = "device" if any(each.self_device_time_total for each in operations) else "cpu"
    table = operations.table(f"self_{device}_time_total", row_limit=_ROWS, max_name_column_width=_NAME)
    try:
        profiler.export_chrome_trace(str(folder / TRACE))
        write_durably(folder / TABLE, table.encode())
    except (OSError, RuntimeError) as error:
        log.warning("The profile is not written: %s", error)
