"""Replay: by how much one record changes the sum of a step, with next to no noise, and why it is too much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedprivacy.audit.apps.audited_app import SILENT, AuditedApp, beside, rows_of, variants
from fedprivacy.audit.apps.watched_training import Gradient
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.tasks import Shard

_EXACT = 1e-2
"""By how much a change may exceed the clipping norm, relative: libraries add a little to a norm before they divide."""

_COPIES = 12
"""Of a record, whose sum shows whether they are clipped one by one."""

_TOGETHER = 0.9
"""Copies of a record whose sum is less than this share of so many are not clipped one by one."""

_LATER = 2
"""Records with which a second step is looked at."""

_SECOND = "in a second step after a first that was the same"
"""Where a record changed a sum."""

_DRAWS = 6
"""Of the noise, to see what it is divided by."""

_GROWN = 3.0
"""Noise that is so many times as large on one record's sum is divided by the true number of records."""

_ALIKE = 1.3
"""Factor within which a record and the noise are too large by the same."""

_LESS = 0.01
"""What is clipped to this share of the clipping norm is as much smaller; what is not clipped stays."""


@gate(
    "replay",
    proves="One record changes the sum of a step by at most one clipping norm.",
    assumes="Crafted records and the first model stand for all others; sums are divided by what `divisor` says.",
)
def check(audited: AuditedApp) -> Judged:
    """Whether no record changes a sum by more than it may."""
    found = _Changes(audited)
    companies = [(company, found.without(company)) for company in _companies(audited)]
    for about, record in variants(audited):
        found.alone(about, record)
        for company, without in companies:
            found.among(about, record, company, without)
    if found.passed and audited.at_optimizer and audited.repeats:
        for about, record in (*variants(audited),)[:_LATER]:
            found.later(about, record)
    return Judged(math.inf if found.lost else found.worst, [] if found.passed else list(found.reasons()))


@dataclass(slots=True)
class _Changes:
    """Changes of sums, in the clipping norms that are allowed for each.

    Attributes:
        audited: the app.
        worst: the largest.
        of: what changed the most, in words.
        single: the largest sum of a single record.
        longest: that record.
        lost: records that make a sum be no number, in words.
    """

    audited: AuditedApp
    worst: float = 0.0
    of: str = ""
    single: float = 0.0
    longest: Shard | None = None
    lost: list[str] = field(default_factory=list)

    def _sum(self, shard: Shard, **asked: Any) -> Gradient:
        return self.audited.sum(shard, noise_multiplier=SILENT, **asked)

    def _size(self, sum: Gradient) -> float:
        """The norm of a sum in clipping norms, less what it may be off by."""
        norm = float(np.linalg.norm(sum))
        return max(norm - self.audited.rounding, 0.0) / self.audited.app.settings.clipping_norm

    def alone(self, about: str, record: Shard) -> None:
        """What a record adds to a sum by itself."""
        size = self._alone(record)
        self._note(size, about, "alone in its shard" if self.audited.count_is_private else "beside copies of itself")
        if math.isfinite(size) and size > self.single:
            self.single, self.longest = size, record

    def _alone(self, record: Shard, **asked: Any) -> float:
        """The sum of a shard with this record and no other; a mean of many, where the number of records is public."""
        count = 1 if self.audited.count_is_private else len(self.audited.shard)
        return self._size(self._sum(_copies(record, count), **asked)) / count

    @property
    def _removes(self) -> bool:
        """Whether a shard with a record is held against one without it; else against one with another in its place."""
        return self.audited.count_is_private and self.audited.repeats

    def without(self, company: Shard) -> Gradient:
        """The sum of others, that a record beside them changes."""
        return self._sum(company if self._removes else beside(company, rows_of(company, slice(0, 1))))

    def among(self, about: str, record: Shard, company: Shard, without: Gradient) -> None:
        """What a record beside others changes; in the place of another it may change twice as much."""
        change = self._sum(beside(company, record)) - without
        self._note(self._size(change) / (1.0 if self._removes else 2.0), about, f"among {len(company)} others")

    def later(self, about: str, record: Shard) -> None:
        """What a record changes in a second step, where the first one moved the model in the same way."""
        company = rows_of(self.audited.shard, slice(0, len(self.audited.shard) - 1))
        asked: dict[str, Any] = {"sampling_rate": 1.0, "steps": 2, "noise_multiplier": SILENT}
        other = company if self._removes else beside(company, rows_of(company, slice(0, 1)))
        sums = [step.gradients or () for step in self.audited.train(other, **asked).steps[:1]]
        one, two = (
            self.audited.sum_of(self.audited.train(shard, sums=sums, **asked), 1, **asked)
            for shard in (beside(company, record), other)
        )
        self._note(self._size(one - two) / (1.0 if self._removes else 2.0), about, _SECOND)

    def _note(self, size: float, about: str, where: str) -> None:
        if not math.isfinite(size):
            self.lost.append(about)
        elif size > self.worst:
            self.worst, self.of = size, f"{about}, {where},"

    @property
    def passed(self) -> bool:
        """Whether no record changed a sum by more than it may."""
        return not self.lost and self.worst <= 1.0 + _EXACT

    def reasons(self) -> Iterator[str]:
        """Why a record changes a sum by too much."""
        for about in dict.fromkeys(self.lost):
            yield f"With {about} in the shard, no numbers leave: everybody sees that it is there."
        if self.worst > 1.0 + _EXACT:
            yield self._why()

    def _why(self) -> str:
        """What a finite change that is too large looks like."""
        changed = f"{self.of} changed a sum by {self.worst:.3g} times what is allowed for one record"
        if self.of.endswith(f"{_SECOND},"):
            return (
                f"Something is carried from step to step without noise, such as momentum of plain gradients: {changed}."
            )
        explained = [] if self.longest is None else [*self._alike(self.longest, changed)]
        if explained:
            return explained[0]
        if self.single > 1.0 + _EXACT:
            return (
                f"A record's gradient is clipped to {self.single:.3g} times the clipping norm that is claimed "
                f"({self.of.split(',')[0]}): its norm is measured too small, as where a layer is used several times, "
                "some parameters are left out, layers are clipped one by one, or ghost norms of sequences cancel in "
                "floating point."
            )
        return (
            "What others add changes with one record, as where gradients are clipped together and not record by "
            f"record: {changed}."
        )

    def _alike(self, record: Shard, changed: str) -> Iterator[str]:
        """What is seen of the record with the largest sum, the surest first."""
        less = _LESS * self.audited.app.settings.clipping_norm
        if self._alone(record, clipping_norm=less) > 0.5 * self.single > 0.5:
            yield f"Nothing clips a record's gradient, and one can change what leaves as much as it likes: {changed}."
        noise, of_all = self._noise(record), self._noise(self.audited.shard)
        if self.audited.count_is_private and noise > _GROWN * of_all:
            yield (
                f"Sums are divided by the true number of records and not by the expected one: {changed}, and its "
                "noise grew with it. Divide by a public number (Opacus: `expected_batch_size` of its optimiser), or "
                "say in `relation` that the number of records is public."
            )
        if of_all > _ALIKE and 1.0 / _ALIKE < of_all / max(self.single, 1e-300) < _ALIKE:
            yield (
                f"Sums and their noise are both larger than they should be: {changed}, and the noise is {of_all:.3g} "
                "times what is claimed. They are divided by something else than the expected batch size, and `divisor` "
                "does not say by what; or records are clipped at another norm than is claimed, with the noise of that."
            )
        copies = self._size(self._sum(_copies(record, _COPIES))) / max(self.single, 1e-300)
        if self.audited.count_is_private and copies < _TOGETHER * _COPIES:
            yield (
                f"Gradients are clipped together and not record by record: {_COPIES} equal records add up to "
                f"{copies:.2g} times one of them, and {changed}. One record then changes what all others add."
            )

    def _noise(self, shard: Shard) -> float:
        """The deviation of the noise on a shard's sum, in what is claimed."""
        rows = np.array([self.audited.sum(shard, 600 + draw) for draw in range(_DRAWS)])
        return float(np.sqrt(rows.var(axis=0, ddof=1).mean())) / self.audited.unit


def _companies(audited: AuditedApp) -> Iterator[Shard]:
    """Shards beside which a record is put: the app's own, and one of equal records, which all pull one way."""
    others = len(audited.shard) - 1
    yield rows_of(audited.shard, slice(0, others))
    yield _copies(rows_of(audited.shard, slice(0, 1)), others)


def _copies(record: Shard, count: int) -> Shard:
    return rows_of(record, torch.zeros(count, dtype=torch.int64))
