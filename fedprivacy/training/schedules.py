"""How the step size of local steps changes over the rounds of a run: public numbers, so it costs no privacy."""

from __future__ import annotations

import math
from collections.abc import Callable

LEARNING_RATE_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda number, rounds: 1.0,
    "linear": lambda number, rounds: 1.0 - (number - 1) / rounds,
    "cosine": lambda number, rounds: 0.5 * (1.0 + math.cos(math.pi * (number - 1) / rounds)),
}
"""By name: (a round from 1, how many there are) -> the share of the learning rate that it has, in (0, 1].

The first round has all of it, and the last one still some: a grant's learning rate is above zero.
"""
