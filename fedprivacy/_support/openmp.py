"""The wait of the threads among which torch shares an operation on a CPU: asleep, not in a loop.

By default a thread of OpenMP that waits for the others computes in a loop for some milliseconds. On a machine that
others use, too, one of them may have lost its core meanwhile; then all the others burn theirs, for each of a model's
many short operations: twenty times the processor time of one thread. A thread that sleeps is woken in microseconds, and
no number depends on it. OpenMP reads the variable when torch is imported, and keeps it.
"""

from __future__ import annotations

import os

VARIABLE, ASLEEP = "OMP_WAIT_POLICY", "PASSIVE"


def ask_for_sleeping_threads() -> None:
    """Let OpenMP's threads sleep while they wait, unless the environment says otherwise; child processes inherit it."""
    os.environ.setdefault(VARIABLE, ASLEEP)
