"""Problems of a model or a loss: one value for each, with the layer's name and the remedy."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace


class Kind(enum.StrEnum):
    """The kind of a problem."""

    BATCH_STATISTICS = "batch-statistics"
    RUNNING_STATISTICS = "running-statistics"
    RANDOM = "random"
    PRECISION = "precision"
    COMPLEX = "complex"
    EMBEDDING = "embedding"
    REWRITTEN = "rewritten-weight"
    UNINITIALISED = "uninitialised"
    UNREGISTERED = "unregistered"
    WRAPPED = "wrapped"
    NOTHING_TO_TRAIN = "nothing-to-train"
    FROZEN_DIFFERS = "frozen-differs"
    FAILS = "fails"
    OUTPUT = "output"
    MIXES_RECORDS = "mixes-records"
    LOSS_SHAPE = "loss-shape"
    EDITS_BATCH = "edits-batch"
    IN_PLACE = "in-place"
    STATE = "state"
    CHANGES = "changes"
    NO_GRADIENT = "no-gradient"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that keeps DP-SGD from training a model soundly.

    Attributes:
        layer: the layer's name as in `named_modules`; "" is the model itself, None the loss.
        kind: the kind of the problem.
        what: the predicate of a sentence whose subject is the layer.
        remedy: the advised change.
        fixable: whether `made_private` fixes it.
        warning: whether it is unwise rather than unsound.
    """

    layer: str | None
    kind: Kind
    what: str
    remedy: str
    fixable: bool = False
    warning: bool = False


def grouped(problems: Iterable[Problem]) -> list[tuple[list[str | None], Problem]]:
    """Group problems that differ only in the layer: (the layers, one of the problems)."""
    groups: dict[Problem, list[str | None]] = {}
    for problem in problems:
        groups.setdefault(replace(problem, layer=None), []).append(problem.layer)
    return [(layers, problem) for problem, layers in groups.items()]


def in_words(problems: Iterable[Problem]) -> str:
    """Describe all problems in one sentence: layer, problem, remedy."""
    return "; ".join(f"{_where(layers)} {p.what}: {p.remedy}" for layers, p in grouped(problems))


def _where(layers: list[str | None]) -> str:
    names = {None: "the loss", "": "the model"}
    *others, last = [names.get(layer, f"layer '{layer}'") for layer in layers]
    return f"each of {', '.join(others)} and {last}" if others else last
