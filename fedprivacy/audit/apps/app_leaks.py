"""Outputs of an app, beside noised numbers, that differ between neighbouring shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedprivacy._support import sources
from fedprivacy.audit.apps.audited_app import EVERY, SILENT, AuditedApp, beside, rows_of, variants
from fedprivacy.audit.apps.fields import Field
from fedprivacy.audit.apps.watched_training import WatchedTraining
from fedprivacy.audit.gates.alarms import Alarms
from fedprivacy.audit.subject import Fields, Neighbours
from fedprivacy.tasks import Shard

_BY_ITSELF = 1e3
"""A number that differs between equal trainings tells of a record if a record changes it so many times as much."""

_AGAIN = 4
"""Number of repeated trainings of an app before a difference is attributed to a record."""

_SAME = 1e-5
"""Relative difference of arrays that are the same but for rounding."""


def neighbours(audited: AuditedApp, alarms: Alarms) -> Iterator[Neighbours]:
    """Yield outputs of neighbours, almost without noise and with it; report arrays that hold more than noised sums."""
    for asked in ({**EVERY, "noise_multiplier": SILENT}, {}):
        whole = _Asked(audited, audited.shard, asked)
        for about, one, other in _neighbours(audited):
            mine = whole if one is audited.shard else _Asked(audited, one, asked)
            yield mine.beside(audited.train(other, **asked), about)
    for complaint in _past_the_noise(audited):
        alarms.must(False, complaint)


def _neighbours(audited: AuditedApp) -> Iterator[tuple[str, Shard, Shard]]:
    """Yield pairs of neighbouring shards, each after words for the difference of the second."""
    shard = audited.shard
    rest, last = rows_of(shard, slice(0, len(shard) - 1)), rows_of(shard, slice(0, 1))
    if audited.count_is_private:
        yield "with one record less", shard, rest
        yield "without its only record", last, rows_of(shard, slice(0, 0))
    seen = set()
    for about, record in variants(audited):
        if about not in seen:
            seen.add(about)
            yield f"with {about} in the place of another", shard, beside(rest, record)


@dataclass(frozen=True)
class _Asked:
    """A shard on which an app is asked to train with some settings, always with the same randomness.

    Attributes:
        audited: the app.
        shard: the records.
        asked: the settings.
    """

    audited: AuditedApp
    shard: Shard
    asked: Mapping[str, Any]

    @cached_property
    def training(self) -> WatchedTraining:
        """The training as it was observed."""
        return self.audited.train(self.shard, **self.asked)

    @cached_property
    def again(self) -> list[dict[str, Field]]:
        """Outputs of repeated trainings: a field that differs between them differs by itself, as a duration does."""
        trainings = (self.audited.train(self.shard, **self.asked) for _ in range(_AGAIN))
        return [{field.name: field for field in training.fields} for training in trainings]

    def beside(self, other: WatchedTraining, about: str) -> Neighbours:
        """This training beside one on a neighbouring shard; `about`: what is other there, in words."""
        mine = self.training
        first, second = ("" if t.error is None else sources.told(t.error) for t in (mine, other))
        forms, others = ([(f.name, f.form) for f in t.fields] for t in (mine, other))
        reason = ""
        if first != second:
            reason = (
                f"Whether anything leaves is other {about}: training fails there ({second or first}), and that shows."
            )
        elif mine.taken != other.taken:
            reason = (
                f"How many steps are taken is other {about}: {other.taken} instead of {mine.taken}. What leaves "
                "shows it (as where a step that no record joins is left out)."
            )
        elif forms != others:
            reason = f"Which fields leave, or their types and sizes, is other {about}: that alone tells of it."
        if reason:
            return Neighbours(one=[("all", 1)], other=[("all", 2)], in_words={"all": reason}.__getitem__)
        whole, rest = ({field.name: field for field in t.fields} for t in (mine, other))

        def in_words(name: str) -> str:
            tells = self._tells(whole[name], rest[name])
            return _named(whole[name], rest[name], about, len(self.shard)) if tells else ""

        left: list[Fields] = [
            [(n, repr(f.value)) for n, f in fields.items() if f.array is None and n not in self.audited.app.noised]
            for fields in (whole, rest)
        ]
        return Neighbours(one=left[0], other=left[1], in_words=in_words)

    def _tells(self, mine: Field, theirs: Field) -> bool:
        """Return whether a field differs by the record, and not by itself."""
        if _equal(mine.value, theirs.value):
            return False
        again = [fields[mine.name] for fields in self.again if mine.name in fields]
        if all(_equal(mine.value, same.value) for same in again):
            return True
        numbers = [field.number for field in again]
        one, other = mine.number, theirs.number
        if one is None or other is None or None in numbers:
            return False
        return not abs(other - one) <= _BY_ITSELF * max(abs(number - one) for number in numbers if number is not None)


def _equal(one: object, other: object) -> bool:
    return repr(one) == repr(other)  # so that NaN is NaN


def _named(mine: Field, theirs: Field, about: str, count: int) -> str:
    """Explain the leak of a field that depends on a record, by what the field seems to be."""
    shown = f"'{mine.name}' is {_short(mine.value)}, and {_short(theirs.value)} {about}"
    if mine.number == count:
        return (
            f"The exact number of records left without noise: {shown}. Whoever knows all others learns whether "
            "somebody is among them."
        )
    if any(word in mine.name.lower() for word in ("loss", "accuracy", "acc", "metric", "error", "auc", "f1")):
        return (
            f"A training loss or metric left without noise: {shown}. It is computed from the records, and no epsilon "
            "counts it."
        )
    return f"Something left without noise: {shown}. No epsilon counts it."


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:40]


def _past_the_noise(audited: AuditedApp) -> Iterator[str]:
    """Arrays that differ between neighbours although every noisy sum is the same: they come from the records.

    Where sums are not seen, arrays that noise does not move, and a record does.
    """
    if audited.at_optimizer:
        sums = [step.gradients or () for step in audited.train(audited.shard, **EVERY).steps]
        one, again = (audited.train(audited.shard, sums=sums, **EVERY) for _ in range(2))
        others = [(about, audited.train(shard, sums=sums, **EVERY)) for about, shard in _others(audited)]
        told = "with every noisy sum held as it was, it is another"
    else:
        one, again = (audited.train(audited.shard, draw, **EVERY) for draw in (0, 1))
        others = [(about, audited.train(shard, **EVERY)) for about, shard in _others(audited)]
        told = "whatever noise is drawn it is the same, and it is another"
    for about, other in others:
        for mine, same, theirs in zip(one.fields, again.fields, other.fields, strict=False):
            if mine.name not in audited.app.noised and not _moved(mine, same) and _moved(mine, theirs):
                yield (
                    f"The array '{mine.name}' left with something without noise: {told} {about} (as with what batch "
                    "normalisation remembers, or a learning rate that is computed from the number of records)."
                )


def _others(audited: AuditedApp) -> Iterator[tuple[str, Shard]]:
    """Neighbours of the whole shard, in words."""
    changed = rows_of(audited.shard, torch.arange(len(audited.shard)))
    changed.inputs[-1] = changed.inputs[-1] * 3 + 1 if changed.inputs.is_floating_point() else changed.inputs[0]
    yield "with another record in the place of one", changed
    if audited.count_is_private:
        yield "with one record less", rows_of(audited.shard, slice(0, len(audited.shard) - 1))


def _moved(one: Field, other: Field) -> bool:
    """Return whether an array is another, by more than rounding."""
    if one.array is None or other.array is None or not one.array.size:
        return False
    if one.form != other.form:
        return True
    a, b = one.array.astype(np.float64), other.array.astype(np.float64)
    return not float(np.abs(a - b).max()) <= _SAME * max(float(np.abs(a).max()), 1e-30)
