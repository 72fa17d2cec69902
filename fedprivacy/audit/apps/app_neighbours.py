"""An app on neighbouring shards: outputs beside its noised numbers that differ, and the change of a sum by one record.

Outputs are compared almost without noise and with it (`neighbours`). Sums are compared in a step, with next to no
noise (`changes`); where one changes too much, `why` explains the cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from fedprivacy._support import sources
from fedprivacy.audit.apps.audited_app import EVERY, SILENT, AuditedApp, beside, rows_of, variants
from fedprivacy.audit.apps.watched_training import Field, Gradient, WatchedTraining
from fedprivacy.audit.gates import Alarms
from fedprivacy.audit.subject import Change, Fields, Neighbours, distance
from fedprivacy.tasks import Shard

_BY_ITSELF = 1e3
"""A number that differs between equal trainings tells of a record if a record changes it so many times as much."""

_AGAIN = 4
"""Number of repeated trainings of an app before a difference is attributed to a record."""

_SAME = 1e-5
"""Relative difference of arrays that are the same but for rounding, where equal trainings differ by it."""

_HALF, _HELD = 0.5, 2
"""Sampling rate at which steps differ most in who joins, and number of rounds that are replayed at it."""

_EXACT = 1e-2
"""Relative tolerance of changes above the clipping norm: libraries add a little to a norm before they divide by it."""

_COPIES = 12
"""Number of copies of a record whose sum shows whether they are clipped one by one."""

_TOGETHER = 0.9
"""Copies of a record whose sum is less than this share of so many are not clipped one by one."""

_LATER = 3
"""Kinds of records with which later steps are looked at."""

_AFTER = "in step {} after others that were the same"
"""Words for a change that a record made to the sum of a later step."""

_DRAWS = 6
"""Number of draws of the noise, to measure its divisor."""

_GROWN = 3.0
"""Noise that is so many times as large on one record's sum is divided by the true number of records."""

_ALIKE = 1.3
"""Factor within which a record and the noise are too large by the same."""

_LESS = 0.01
"""Factor on the clipping norm that shows whether gradients are clipped: clipped ones shrink by it, others do not."""


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
        first, second = ("" if t.error is None else sources.describe_error(t.error) for t in (mine, other))
        forms, others = ([(f.name, f.form) for f in t.fields] for t in (mine, other))
        reason = ""
        if first != second:
            reason = (
                f"Whether anything leaves is other {about}: training fails there ({second or first}), and that shows."
            )
        elif mine.steps_taken != other.steps_taken:
            reason = (
                f"How many steps are taken is other {about}: {other.steps_taken} instead of {mine.steps_taken}. What "
                "leaves shows it (as where a step that no record joins is left out)."
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
            if theirs.error is None and theirs.steps_taken != one.steps_taken:
                taken = f"{theirs.steps_taken} instead of {one.steps_taken}"
                yield f"How many steps are taken is other {about}: {same}it is {taken}."
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


def changes(audited: AuditedApp, alarms: Alarms) -> Iterator[Change]:
    """Changes by each record alone, and among others; in later steps, if nothing is wrong with the first."""
    companies = [(company, _sum(audited, _other(audited, company))) for company in _companies(audited)]
    seen = []
    for about, record in variants(audited):
        seen.append(_alone(audited, about, record))
        seen += [_among(audited, about, record, company, without) for company, without in companies]
    yield from seen
    if all(change.holds for change in seen) and audited.at_optimizer and audited.repeats:
        yield from _later(audited)


def _sum(audited: AuditedApp, shard: Shard, **asked: Any) -> Gradient:
    return audited.sum(shard, noise_multiplier=SILENT, **asked)


def _change(audited: AuditedApp, about: str, one: Gradient, other: Gradient, times: float, **more: Any) -> Change:
    """A change that may be so many clipping norms; `more`: as for `Change`."""
    norm = times * audited.app.settings.clipping_norm
    return Change(
        about=about,
        moved=distance(one, other),
        allowed=norm * (1.0 + _EXACT) + audited.rounding,
        clipping_norm=norm,
        **more,
    )


def _alone(audited: AuditedApp, about: str, record: Shard, **asked: Any) -> Change:
    """Return what a record adds by itself: its own sum, or that of many copies if the number of records is public."""
    count = 1 if audited.count_is_private else len(audited.shard)
    about = f"{about}, {'alone in its shard' if audited.count_is_private else 'beside copies of itself'}"
    sums = _sum(audited, _copies(record, count), **asked)
    return _change(audited, about, sums, np.zeros_like(sums), count, alone=record)


def _removes(audited: AuditedApp) -> bool:
    """Return whether neighbours differ by removal of a record; otherwise another record takes its place."""
    return audited.count_is_private and audited.repeats


def _other(audited: AuditedApp, company: Shard) -> Shard:
    """The neighbour of a company that one record more joins."""
    return company if _removes(audited) else beside(company, rows_of(company, slice(0, 1)))


def _among(audited: AuditedApp, about: str, record: Shard, company: Shard, rest: Gradient) -> Change:
    """Return the change by a record beside others, whose sum is `rest`; a replacement may change twice as much."""
    with_it = _sum(audited, beside(company, record))
    about = f"{about}, among {len(company)} others"
    return _change(audited, about, with_it, rest, 1.0 if _removes(audited) else 2.0)


def _later(audited: AuditedApp) -> Iterator[Change]:
    """Yield changes of all later steps of a round by some records, after steps that moved both models alike."""
    company = rows_of(audited.shard, slice(0, len(audited.shard) - 1))
    asked: dict[str, Any] = {"sampling_rate": 1.0, "noise_multiplier": SILENT}
    without = audited.train(_other(audited, company), **asked)
    sums = [step.gradients or () for step in without.steps]
    for about, record in islice(dict(variants(audited)).items(), _LATER):
        with_it = audited.train(beside(company, record), sums=sums, **asked)
        for step in range(1, len(sums)):
            one, two = (audited.sum_of(training, step, **asked) for training in (with_it, without))
            named = f"{about}, {_AFTER.format(step + 1)}"
            yield _change(audited, named, one, two, 1.0 if _removes(audited) else 2.0)


def why(audited: AuditedApp, changes: Sequence[Change]) -> Iterator[str]:
    """Why a record changes a sum by too much."""
    for about in dict.fromkeys(change.about.split(",")[0] for change in changes if change.lost):
        yield f"With {about} in the shard, no numbers leave: everybody sees that it is there."
    failed = [change for change in changes if not (change.lost or change.holds)]
    if failed:
        alone = [change for change in changes if change.alone is not None and not change.lost]
        longest = max(alone, key=lambda change: change.size, default=None)
        yield _why(audited, max(failed, key=lambda change: change.size), longest)


def _why(audited: AuditedApp, worst: Change, longest: Change | None) -> str:
    """Explain a change that is too large.

    Args:
        audited: the app.
        worst: the largest change.
        longest: the largest sum of one record alone.
    """
    changed = f"{worst.about}, changed a sum by {worst.size:.3g} times what is allowed for one record"
    if worst.about.endswith(_AFTER.rpartition("{}")[2]):
        return (
            "Something is carried from step to step without noise, such as momentum of plain gradients, or later steps "
            f"clip less than the first: {changed}."
        )
    if longest is not None:
        for explained in _alike(audited, longest, changed):
            return explained
        if longest.size > 1.0 + _EXACT:
            return (
                f"A record's gradient is clipped to {longest.size:.3g} times the clipping norm that is claimed "
                f"({worst.about.split(',')[0]}): its norm is measured too small, as where a layer is used several "
                "times, some parameters are left out, layers are clipped one by one, or ghost norms of sequences "
                "cancel in floating point."
            )
    return (
        "What others add changes with one record, as where gradients are clipped together and not record by "
        f"record: {changed}."
    )


def _alike(audited: AuditedApp, longest: Change, changed: str) -> Iterator[str]:
    """Yield explanations by the record with the largest sum, the surest first."""
    record, single = longest.alone or audited.shard, longest.size
    less = _LESS * audited.app.settings.clipping_norm
    if _alone(audited, "", record, clipping_norm=less).size > 0.5 * single > 0.5:
        yield f"Nothing clips a record's gradient, and one can change what leaves as much as it likes: {changed}."
    noise, of_all = _noise(audited, record), _noise(audited, audited.shard)
    if audited.count_is_private and noise > _GROWN * of_all:
        yield (
            f"Sums are divided by the true number of records and not by the expected one: {changed}, and its "
            "noise grew with it. Divide by a public number (Opacus: `expected_batch_size` of its optimiser), or "
            "say in `relation` that the number of records is public."
        )
    if of_all > _ALIKE and 1.0 / _ALIKE < of_all / max(single, 1e-300) < _ALIKE:
        yield (
            f"Sums and their noise are both larger than they should be: {changed}, and the noise is {of_all:.3g} "
            "times what is claimed. They are divided by something else than the expected batch size, and `divisor` "
            "does not say by what; or records are clipped at another norm than is claimed, with the noise of that."
        )
    sums = _sum(audited, _copies(record, _COPIES))
    copies = float(np.linalg.norm(sums)) / max(longest.moved, 1e-300)
    if audited.count_is_private and copies < _TOGETHER * _COPIES:
        yield (
            f"Gradients are clipped together and not record by record: {_COPIES} equal records add up to "
            f"{copies:.2g} times one of them, and {changed}. One record then changes what all others add."
        )


def _noise(audited: AuditedApp, shard: Shard) -> float:
    """The deviation of the noise on a shard's sum, in what is claimed."""
    rows = np.array([audited.sum(shard, 600 + draw) for draw in range(_DRAWS)])
    return float(np.sqrt(rows.var(axis=0, ddof=1).mean())) / audited.unit


def _companies(audited: AuditedApp) -> Iterator[Shard]:
    """Shards beside which a record is put: the app's own, and one of equal records, which all pull one way."""
    others = len(audited.shard) - 1
    yield rows_of(audited.shard, slice(0, others))
    yield _copies(rows_of(audited.shard, slice(0, 1)), others)


def _copies(record: Shard, count: int) -> Shard:
    return rows_of(record, torch.zeros(count, dtype=torch.int64))
