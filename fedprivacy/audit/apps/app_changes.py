"""Change of an app's sum in a step by one record, with next to no noise, and the causes if it is too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from fedprivacy.audit.apps.audited_app import SILENT, AuditedApp, beside, rows_of, variants
from fedprivacy.audit.apps.watched_training import Gradient
from fedprivacy.audit.gates import Alarms
from fedprivacy.audit.subject import Change, distance
from fedprivacy.tasks import Shard

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


def changes(audited: AuditedApp, alarms: Alarms) -> Iterator[Change]:
    """Changes by each record alone, and among others; in later steps, if nothing is wrong with the first."""
    companies = [(company, _without(audited, company)) for company in _companies(audited)]
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


def _without(audited: AuditedApp, company: Shard) -> Gradient:
    return _sum(audited, _other(audited, company))


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
