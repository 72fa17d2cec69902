"""Release: what leaves an app beside noised numbers, compared between neighbouring shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedprivacy._support import sources
from fedprivacy.audit.apps.audited import EVERY, SILENT, AuditedApp, beside, gate, rows_of, variants
from fedprivacy.audit.apps.fields import Field
from fedprivacy.audit.apps.training import Training
from fedprivacy.audit.gates.audited import MOST_REASONS, Judged
from fedprivacy.tasks import Shard

_BY_ITSELF = 1e3
"""A number that differs between equal trainings tells of a record if a record changes it so many times as much."""

_SAME = 1e-5
"""Relative difference of arrays that are the same but for rounding."""


@gate(
    "release",
    proves="Nothing leaves the client that depends on a record, but for arrays that carry noise.",
    assumes="The neighbouring shards that were tried stand for all others. How long a training takes is not judged.",
)
def check(audited: AuditedApp) -> Judged:
    """Whether nothing but noised arrays depends on a record."""
    found = _Found(audited)
    for asked in ({**EVERY, "noise_multiplier": SILENT}, {}):
        for about, one, other in _neighbours(audited):
            if len(set(found.reasons)) >= MOST_REASONS:
                break
            first, again, second = (audited.train(shard, **asked) for shard in (one, one, other))
            found.compare(about, first, again, second, len(one))
    found.reasons += _past_the_noise(audited)
    return Judged(float(len(found.reasons)), found.reasons)


def _neighbours(audited: AuditedApp) -> Iterator[tuple[str, Shard, Shard]]:
    """In words, what is other in the second shard."""
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


@dataclass(slots=True)
class _Found:
    """What differed so far."""

    audited: AuditedApp
    reasons: list[str] = field(default_factory=list)

    def compare(self, about: str, one: Training, again: Training, other: Training, count: int) -> None:
        """Two trainings on neighbouring shards, and the first of them once more."""
        if one.error is not None or other.error is not None:
            self._compare_errors(about, one, other)
            return
        if [(f.name, f.form) for f in one.fields] != [(f.name, f.form) for f in other.fields]:
            self.reasons.append(
                f"Which fields leave, or their types and sizes, is other {about}: that alone tells of it."
            )
            return
        for mine, same, theirs in zip(one.fields, again.fields, other.fields, strict=True):
            if mine.array is None and mine.name not in self.audited.app.noised and _tells(mine, same, theirs):
                self.reasons.append(_named(mine, theirs, about, count))

    def _compare_errors(self, about: str, one: Training, other: Training) -> None:
        words = ["" if t.error is None else sources.told(t.error) for t in (one, other)]
        if words[0] != words[1]:
            told = words[1] or words[0]
            self.reasons.append(
                f"Whether anything leaves is other {about}: training fails there ({told}), and that shows."
            )


def _tells(mine: Field, same: Field, theirs: Field) -> bool:
    """Whether a field differs by the record, and not by itself, as a duration does."""
    if _equal(mine.value, theirs.value):
        return False
    if _equal(mine.value, same.value):
        return True
    one, again, other = mine.number, same.number, theirs.number
    if one is None or again is None or other is None:
        return False
    return not abs(other - one) <= _BY_ITSELF * abs(again - one)


def _equal(one: object, other: object) -> bool:
    return repr(one) == repr(other)  # so that NaN is NaN


def _named(mine: Field, theirs: Field, about: str, count: int) -> str:
    """What is wrong with a field that tells of a record, by what it seems to be."""
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
    changed = Shard(audited.shard.inputs.clone(), audited.shard.targets)
    changed.inputs[-1] = changed.inputs[-1] * 3 + 1 if changed.inputs.is_floating_point() else changed.inputs[0]
    if audited.at_optimizer:
        sums = [step.gradients or () for step in audited.train(audited.shard).steps]
        shards = (audited.shard, audited.shard, changed)
        one, again, other = (audited.train(shard, sums=sums) for shard in shards)
        told = "with every noisy sum held as it was, it is another with another record"
    else:
        one, again = (audited.train(audited.shard, draw, **EVERY) for draw in (0, 1))
        other = audited.train(changed, 0, **EVERY)
        told = "whatever noise is drawn it is the same, and with another record it is not"
    for mine, same, theirs in zip(one.fields, again.fields, other.fields, strict=False):
        if mine.name not in audited.app.noised and not _moved(mine, same) and _moved(mine, theirs):
            yield f"The array '{mine.name}' left without noise: {told} (as with what batch normalisation remembers)."


def _moved(one: Field, other: Field) -> bool:
    """Whether an array is another, by more than rounding."""
    if one.array is None or other.array is None or not one.array.size:
        return False
    if one.form != other.form:
        return True
    a, b = one.array.astype(np.float64), other.array.astype(np.float64)
    return not float(np.abs(a - b).max()) <= _SAME * max(float(np.abs(a).max()), 1e-30)
