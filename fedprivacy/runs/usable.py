"""Number of a shard's records that count for something, found before a budget is spent on them.

A null record cannot be read. Of another one no gradient can be computed: its label or a word is out of range, or a
number is infinite. Both contribute zero to every sum, and cost as much as others. Their numbers are private: they are
for the terminal of whoever owns the records, and no deployed client computes them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedprivacy.gradients.engine import GradientEngine
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.questions.standardise import standardise_question, standardiser
from fedprivacy.tasks.opened import OpenedTask
from fedprivacy.tasks.task import Shard
from fedprivacy.training.batches import Views, layout_of, sampled_batches
from fedprivacy.values.wording import plural

log = logging.getLogger(__name__)

_TRIED, _MOST = 60, 10_000
"""Number of records of which gradients are tried; and of a shard with one that has none."""

_TOGETHER = 100
"""Number of records that are tried at a time."""


@dataclass(frozen=True, slots=True)
class Usable:
    """Numbers of a shard's records, or of several shards'; private.

    Attributes:
        records, null: number of records, and of those that are null.
        tried, failing: number of records whose gradient was tried, and of those that have none.
    """

    records: int
    null: int
    tried: int = 0
    failing: int = 0

    def __add__(self, other: Usable) -> Usable:
        ours, theirs = ((u.records, u.null, u.tried, u.failing) for u in (self, other))
        return Usable(*map(sum, zip(ours, theirs, strict=True)))

    @property
    def mostly_void(self) -> bool:
        """True if more than half of the records count for nothing."""
        tried = max(self.tried, 1)
        return 2 * (self.records - self.null) * (tried - self.failing) < self.records * tried

    def lines(self, unit: str = "record") -> list[str]:
        """The numbers for people; empty if every record counts."""
        some = plural(unit)
        null = f"{self.null:,} of {self.records:,} {some} cannot be read and count for nothing"
        failing = (
            f"{self.failing:,} of {self.tried:,} {some} that were tried have no gradient and count for nothing → see "
            "that labels and words are in range, and numbers finite"
        )
        return [null] * (self.null > 0) + [failing] * (self.failing > 0)


def null_records(shard: Shard) -> Usable:
    """Count a shard's null records, whether or not their values are there."""
    return Usable(len(shard), 0 if shard.null is None else int(shard.null.sum()))


def usable_records(
    engine: GradientEngine, shard: Shard, views: Views | None = None, standardise: nn.Module | None = None
) -> Usable:
    """Count a shard's null records, and try the gradients of some of the others; of all, if one has none.

    Numbers that are out of range are extreme, so that records with the largest and the smallest are among them.

    Args:
        engine: engine that will compute the gradients, at its model's present parameters.
        shard: present records, on the model's device.
        views: as in `NoisyMean`.
        standardise: standardiser of the inputs; None: they stay as they are.
    """
    drawn, position = Keystream.from_seed(0, "usable"), Position(0, 0)

    def failing(places: NDArray[np.intp]) -> int:
        """Count the records at some places that have no finite gradient, as the steps of a training meet them."""
        counted = 0
        for start in range(0, len(places), _TOGETHER):
            at = torch.from_numpy(places[start : start + _TOGETHER])
            inputs, targets = (rows[at.to(rows.device)] for rows in (shard.inputs, shard.targets))
            some = shard.of_records(standardise(inputs) if standardise else inputs, targets)
            batches = sampled_batches(some, np.arange(len(at)), engine.layout, views, drawn, position)
            counted += sum(engine.clip(*batch, 1.0).records for batch in batches)
        return len(places) - counted

    places = _places(shard)
    if found := failing(places):
        places = np.union1d(places, _spread(len(shard.inputs), _MOST))
        found = failing(places)
    return replace(null_records(shard), tried=len(places), failing=found)


def usable_in_training(task: OpenedTask, shard: Shard, engine: GradientEngine | None = None, views: int = 0) -> Usable:
    """Count a shard's usable records as a task trains on them.

    Args:
        task: task that read the shard.
        shard: present records.
        engine: engine of the task's model; None: a new one.
        views: augmentation multiplicity; 0: the records as they are.
    """
    device, question = shard.inputs.device, standardise_question(task)
    engine = engine or GradientEngine(task.model().to(device), task.loss, layout=layout_of(task, views))
    made = Views(task.needed_augmentation(), views, shard.blank[0]) if views else None
    return usable_records(engine, shard, made, standardiser(question).to(device) if question else None)


def check_usable(found: Usable, name: str, remedy: str, *, unit: str = "record", reasons: Sequence[str] = ()) -> None:
    """Tell the owner which records count for nothing, and refuse if most do.

    Args:
        found: numbers of the records.
        name: name of the records.
        remedy: how their owner allows that; "": it is allowed.
        unit: word for a record.
        reasons: reasons for which records are null, with what helps.

    Raises:
        ValueError: more than half of the records count for nothing, and nobody said so.
    """
    lines = [*found.lines(unit), *reasons]
    if lines:
        log.warning("%s", "\n".join(f"{name}: {line}." for line in lines))
    if found.mostly_void and remedy:
        raise ValueError(f"more than half of the {plural(unit)} count for nothing: {'; '.join(lines)}. {remedy}")


def _places(shard: Shard) -> NDArray[np.intp]:
    """Return the places of some records: evenly spread, and those with the largest and smallest numbers."""
    count = len(shard.inputs)
    chosen = set(_spread(count, _TRIED).tolist())
    for rows in (shard.inputs, shard.targets):
        with suppress(RuntimeError, IndexError):  # there is no number, or none of a type that has an order
            each = rows.reshape(count, -1)
            chosen |= {int(each.amax(1).double().argmax()), int(each.amin(1).double().argmin())}
    return np.array(sorted(chosen), np.intp)


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """Return up to so many places, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.intp)
