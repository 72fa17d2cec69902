"""Randomness: whether noise, masks and samples come from numbers that somebody can find by trying."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.audit.apps.audited_app import EVERY, AuditedApp
from fedprivacy.audit.apps.seeds import GUESSABLE, ON_CPU, bits
from fedprivacy.audit.apps.watched_training import WatchedTraining
from fedprivacy.audit.gates.gate import Judged, gate

_CHANGE = 0x2AB3
"""Mask that changes guessable seeds and keeps them as short as they were."""

_MATERIAL = 1e-2
"""Least movement that counts, by a changed seed relative to all other random numbers: rounding moves less."""

_ROUNDING = 1e-6
"""Relative rounding error of an array."""


@gate(
    "randomness",
    proves="What leaves does not depend on random numbers that somebody can find by trying.",
    assumes="Seeds that are set while a round runs, by torch, numpy or Python's random. The generators that a process "
    "begins with are not judged: on a CPU, torch's has 32 bits, which somebody can find by trying; neither torch's nor "
    "numpy's are made for secrets.",
)
def check(audited: AuditedApp) -> Judged:
    """Check whether a seed that can be guessed moves what leaves, or who joins."""
    reasons = []
    plain = audited.train(audited.shard, 500, **EVERY)
    seeds = plain.guessable
    if seeds and _moves(
        plain,
        audited.train(audited.shard, 500, change=_CHANGE, **EVERY),
        audited.train(audited.shard, 501, **EVERY),
    ):
        reasons.append(
            f"Noise or a mask in what leaves comes from a seed of at most 40 bits ({_shown(seeds)}): whoever tries "
            "them all, in minutes or hours, subtracts it and sees the records without it."
        )
    sampled = audited.train(audited.shard, 500)
    if sampled.guessable and _others_join(sampled, audited.train(audited.shard, 500, change=_CHANGE)):
        reasons.append(
            f"Who joins a step comes from a seed of at most 40 bits ({_shown(sampled.guessable)}): whoever finds it "
            "knows who joined, and the epsilon counts on nobody knowing."
        )
    return Judged(float(len(seeds)), reasons)


def _moves(plain: WatchedTraining, changed: WatchedTraining, other: WatchedTraining) -> bool:
    """Return whether a changed seed moves an array that leaves by more than rounding; `other` is drawn quite anew."""
    if any(training.error is not None for training in (plain, changed, other)):
        return False
    return any(
        _distance(one, moved) > _MATERIAL * _distance(one, anew)
        for one, moved, anew in zip(plain.arrays, changed.arrays, other.arrays, strict=False)
    )


def _distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the distance between two arrays; 0 if it is no more than rounding."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.astype(np.float64), other.astype(np.float64)
    distance = float(np.linalg.norm(a - b))
    return distance if distance > _ROUNDING * float(np.linalg.norm(a)) else 0.0


def _others_join(one: WatchedTraining, other: WatchedTraining) -> bool:
    return any(
        sorted(mine.joined.tolist()) != sorted(theirs.joined.tolist())
        for mine, theirs in zip(one.steps, other.steps, strict=False)
    )


def _shown(seeds: tuple[int, ...]) -> str:
    return ", ".join(
        str(seed) if bits(seed) <= GUESSABLE else f"{seed}, of which torch takes the last {ON_CPU} bits on a CPU"
        for seed in dict.fromkeys(seeds[:3])
    )
