"""Schedules of the local learning rate over the rounds of a run: public numbers, so they cost no privacy."""

from __future__ import annotations

import math
from collections.abc import Callable

LEARNING_RATE_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda number, rounds: 1.0,
    "linear": lambda number, rounds: 1.0 - (number - 1) / rounds,
    "cosine": lambda number, rounds: 0.5 * (1.0 + math.cos(math.pi * (number - 1) / rounds)),
}
"""Schedules by name: (number of a round, from 1; number of rounds) -> share of the learning rate, in (0, 1].

The first round has all of the learning rate, the last one still some: a grant's learning rate must be above zero.
"""
