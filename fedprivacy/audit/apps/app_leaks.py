"""Outputs of an app, beside noised numbers, that differ between neighbouring shards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from fedprivacy._support import sources
from fedprivacy.audit.apps.audited_app import EVERY, SILENT, AuditedApp, beside, rows_of, variants
from fedprivacy.audit.apps.watched_training import Field, WatchedTraining
from fedprivacy.audit.gates import Alarms
from fedprivacy.audit.subject import Fields, Neighbours
from fedprivacy.tasks import Shard

_BY_ITSELF = 1e3
"""A number that differs between equal trainings tells of a record if a record changes it so many times as much."""

_AGAIN = 4
"""Number of repeated trainings of an app before a difference is attributed to a record."""

_SAME = 1e-5
"""Relative difference of arrays that are the same but for rounding, where equal trainings differ by it."""

_HALF, _HELD = 0.5, 2
"""Sampling rate at which steps differ most in who joins, and number of rounds that are replayed at it."""


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
    """Explain what differs between neighbours although every noisy sum is the same: it comes from the records.

    Where sums are not seen, arrays are told of that noise does not move, and a record does.
    """
    asked, told = ({"sampling_rate": _HALF} if audited.at_optimizer else EVERY), set[str]()
    for draw in range(_HELD if audited.at_optimizer else 1):
        steps = audited.train(audited.shard, draw, shift=0, **asked).steps
        held = [step.gradients or () for step in steps] if audited.at_optimizer else None
        same = "with every noisy sum held as it was, " if held else "whatever noise is drawn it is the same, and "
        one, again, anew = (
            audited.train(audited.shard, d, sums=held, shift=0, **asked) for d in (draw, draw, draw + 1)
        )
        still, random = (again, any(map(_apart, one.fields, anew.fields))) if held else (anew, False)
        for about, other in _others(audited, draw):
            theirs = audited.train(other, draw, sums=held, shift=0, **asked)
            if theirs.error is None and theirs.taken != one.taken:
                yield f"How many steps are taken is other {about}: {same}it is {theirs.taken} instead of {one.taken}."
            if random and len(other) != len(audited.shard):  # whatever is drawn after the samples is another, too
                continue
            for mine, copy, changed in zip(one.fields, still.fields, theirs.fields, strict=False):
                if mine.name in told or mine.name in audited.app.noised:
                    continue
                allowed = 0.0 if held and _apart(mine, copy) == 0.0 else _SAME
                if _apart(mine, copy) <= allowed < _apart(mine, changed):
                    told.add(mine.name)
                    yield (
                        f"The array '{mine.name}' left with something without noise: {same}it is another {about} (as "
                        "with what batch normalisation remembers, or a learning rate that depends on the records or "
                        "their number)."
                    )


def _others(audited: AuditedApp, draw: int) -> Iterator[tuple[str, Shard]]:
    """Neighbours of the whole shard, in words: in each place another record, by a kind that it has not yet had."""
    shard = audited.shard
    if audited.count_is_private:
        yield "with one record less", rows_of(shard, slice(0, len(shard) - 1))
    for number, (about, record) in enumerate(islice(variants(audited), draw, None, 2 * _HELD)):
        changed = rows_of(shard, torch.arange(len(shard)))
        place = number % len(shard)
        changed.inputs[place], changed.targets[place] = record.inputs[0], record.targets[0]
        yield f"with {about} in the place of one", changed


def _apart(one: Field, other: Field) -> float:
    """Return the relative distance of two arrays; infinite if one is no number or has another form, 0 of no arrays."""
    if one.array is None or other.array is None or not one.array.size:
        return 0.0
    if one.form != other.form:
        return math.inf
    a, b = one.array.astype(np.float64), other.array.astype(np.float64)
    apart = float(np.abs(a - b).max()) / max(float(np.abs(a).max()), 1e-30)
    return apart if np.isfinite(apart) else math.inf
