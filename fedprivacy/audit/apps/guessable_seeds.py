"""Randomness: whether noise, masks and samples come from numbers that somebody can find by trying."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.apps.frozen import SHIFT
from fedprivacy.audit.apps.seeds import GUESSABLE, ON_CPU, bits
from fedprivacy.audit.apps.watched_training import WatchedTraining
from fedprivacy.audit.gates.gate import Judged, gate

_CHANGE = 0x2AB3
"""Mask that changes guessable seeds and keeps them as short as they were."""

_MATERIAL = 1e-2
"""Least movement that counts, by a changed seed relative to all other random numbers: rounding moves less."""

_REPEATS = 10.0
"""Least movement that counts, relative to that between trainings that are asked the same."""

_ROUNDING = 1e-6
"""Relative rounding error of an array."""


@gate(
    "randomness",
    proves="What leaves does not depend on random numbers that somebody can find by trying.",
    assumes="Seeds that are set while a round runs, by torch, numpy or Python's random, and Python's clocks. The "
    "generators that a process begins with are not judged: on a CPU, torch's has 32 bits, which somebody can find by "
    "trying; neither torch's nor numpy's are made for secrets.",
)
def check(audited: AuditedApp) -> Judged:
    """Check whether a seed that can be guessed, or the time, moves what leaves, or who joins."""
    reasons = []
    plain, sampled = _Asked(audited, {"sampling_rate": 1.0}), _Asked(audited, {})
    seeds = plain.usual.guessable or sampled.usual.guessable
    suspected = {"the time of a clock": {"shift": SHIFT}}
    if seeds:
        suspected[f"a seed of at most {GUESSABLE} bits ({_shown(seeds)})"] = {"change": _CHANGE}
    for source, change in suspected.items():
        if plain.moves(change):
            reasons.append(
                f"Noise or a mask in what leaves comes from {source}: whoever tries them all, in hours or days, "
                "subtracts it and sees the records without it."
            )
        if sampled.others_join(change):
            reasons.append(
                f"Who joins a step comes from {source}: whoever finds it knows who joined, and the epsilon counts on "
                "nobody knowing."
            )
    return Judged(float(len(seeds)), reasons)


@dataclass(frozen=True)
class _Asked:
    """A round that is asked for with nothing random in it but what is changed."""

    audited: AuditedApp
    asked: Mapping[str, Any]

    @cached_property
    def usual(self) -> WatchedTraining:
        """The round without a change."""
        return self.audited.train(self.audited.shard, 500, shift=0, **self.asked)

    def again(self, draw: int = 500, shift: int = 0, change: int = 0) -> WatchedTraining:
        """Return the round once more: clocks and secret numbers repeat themselves, and so do guessable seeds."""
        watched = {"again": self.usual.guessable, "change": change}
        return self.audited.train(self.audited.shard, draw, watched=watched, shift=shift, **self.asked)

    def moves(self, change: Mapping[str, int]) -> bool:
        """Return whether a change moves an array that leaves, by more than rounding and than it moves by itself."""
        plain, changed = self.usual, self.again(**change)
        if plain.error or changed.error or not any(map(_distance, plain.arrays, changed.arrays)):
            return False
        return any(
            _distance(one, moved) > max(_MATERIAL * _distance(one, drawn), _REPEATS * _distance(one, same))
            for one, moved, same, drawn in zip(
                *(training.arrays for training in (plain, changed, self.again(), self.again(501))), strict=False
            )
        )

    def others_join(self, change: Mapping[str, int]) -> bool:
        """Return whether a change lets others join, who do not join by themselves."""
        return _joined(self.again(**change)) != _joined(self.usual) == _joined(self.again())


def _distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the distance between two arrays; 0 if it is no more than rounding."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.astype(np.float64), other.astype(np.float64)
    distance = float(np.linalg.norm(a - b))
    return distance if distance > _ROUNDING * float(np.linalg.norm(a)) else 0.0


def _joined(training: WatchedTraining) -> list[list[int]]:
    return [sorted(step.joined.tolist()) for step in training.steps]


def _shown(seeds: tuple[int, ...]) -> str:
    return ", ".join(
        str(seed) if bits(seed) <= GUESSABLE else f"{seed}, of which torch takes the last {ON_CPU} bits on a CPU"
        for seed in dict.fromkeys(seeds[:3])
    )
