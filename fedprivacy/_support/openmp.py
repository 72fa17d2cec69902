"""The wait of the threads among which torch shares an operation on a CPU: briefly awake, then asleep.

By default a waiting thread of GNU's OpenMP counts to 300,000, some milliseconds, before it sleeps. On a machine that
others use, too, the thread that it waits for may have lost its core meanwhile, so that all others burn theirs, for each
of a model's many short operations: ten times the processor time of one thread. A thread that slept at once would be
woken too late on an idle machine, where two would be slower than one. To count to COUNT, some tenths of a millisecond,
takes a tenth more time on an idle machine, and on a busy one a quarter of what the default burns
(docs/explanation/speed.md). No bit of a result depends on it. OpenMP reads the variable when torch is imported, and
keeps it.
"""

from __future__ import annotations

import os

VARIABLE, COUNT = "GOMP_SPINCOUNT", 10_000
"""Variable of GNU's OpenMP, and what a waiting thread counts to."""

POLICY = "OMP_WAIT_POLICY"
"""Variable of every OpenMP by which users choose; COUNT would overrule it."""


def ask_for_short_waits() -> None:
    """Let OpenMP's threads sleep after a short wait, unless the user has chosen; child processes inherit it."""
    if POLICY not in os.environ:
        os.environ.setdefault(VARIABLE, str(COUNT))
