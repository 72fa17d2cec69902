"""Local evaluation: what a client's records score leaves as a noisy sum, at the price of one local step.

Any server may ask for it, whatever the run's settings are, so every client is asked. Some records have scores that the
auditor chose; they are told from the sums as others are from the sums of gradients. The noise and the sample are those
of any step, which the gates `noise` and `sampling` judge; that an evaluation draws its own is tested by
`tests/privacy/test_evaluation_draws.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprivacy.audit.gates import Alarms, Judged, gate
from fedprivacy.audit.our_client.audited_client import SILENT, Audited, Parameters, without_records
from fedprivacy.audit.our_client.probes import Known, hostile_parameters, pairs_of, shard_of, zeros_for
from fedprivacy.audit.real_client import AskedClient, NoUpdateError
from fedprivacy.audit.subject import Effort
from fedprivacy.flower.wire.messages import Grant
from fedprivacy.mechanisms.gaussian_sum import ROUNDING_ALLOWANCE
from fedprivacy.tasks import Score, Shard

_READING = 2.0**-20
"""Error of float32 that a reading of a release may have, relative to its norm, and at least."""

_LATTICE = 2.0**-12
"""Maximum movement of a sum of four releases by rounding to the lattice."""

RAISES, WORTHLESS = -1e31, 0.5
"""A target whose score raises, and that no made-up record has; and one that is in the middle, and moves a sum of scores
by nothing."""

_EXTREMES = (0.0, 1.0, 1e9, -1e9, math.inf, -math.inf, math.nan, RAISES, WORTHLESS)
"""Scores before they are clipped."""

Sums = NDArray[np.float64]


class Scored(Known):
    """A known task of one layer whose scores are its targets, from 0 to 1: as many as the layer has coordinates."""

    def scores(self) -> Mapping[str, Score]:
        """Return one score for each target."""
        return {f"{column}": Score(partial(_target, column)) for column in range(self.sizes[0])}


def _target(column: int, outputs: Tensor, targets: Tensor) -> Tensor:
    worthless = torch.zeros(1)[(targets == RAISES).any(1).long()]  # raises without a branch: records stay in company
    return targets[:, column] + worthless + 0.0 * outputs[:, 0]


@gate(
    "evaluation",
    proves="A local evaluation tells of one record at most what one step may.",
    assumes="The records and scores that were tried stand for all others. Noise and samples are those of steps (noise, "
    "sampling).",
)
def check(audited: Audited) -> Judged:
    """Check whether the noisy sums of a local evaluation are what one release of the mechanism may be."""
    found = _Found(audited)
    _known_scores(found)
    _own_scores(found)
    return Judged(found.largest, found.alarms.reasons)


def evaluation_grant(audited: Audited, **changed: Any) -> Grant:
    """One step that trains, and one that evaluates; without noise to speak of, unless it is given."""
    return audited.asking(steps=2, local_evaluation=True, **{"noise_multiplier": SILENT} | changed)


def shard_with_scores(scores: Sequence[Sequence[float]] | Tensor, task: Scored) -> Shard:
    """Records of zeros with these scores, shape [records, scores]."""
    targets = torch.as_tensor(scores, dtype=torch.float32).reshape(-1, task.sizes[0])
    return shard_of(torch.zeros(len(targets), task.sizes[0]), targets)


@dataclass(slots=True)
class _Found:
    """Findings so far: the alarms, and the largest movement of a sum by one record, in units of its bound."""

    audited: Audited
    alarms: Alarms = field(default_factory=Alarms)
    largest: float = 0.0

    def compare(self, one: Sums, other: Sums, *, joined: bool, about: str, own: bool = False) -> None:
        """Judge the sums of two shards that differ in one record; `own`: no number may be told of a data owner's."""
        if not np.isfinite(other).all() or not np.isfinite(one).all():
            self.alarms.must(False, f"A local evaluation that is not a number left the client ({about}).")
            return
        change, reading = float(np.linalg.norm(one - other)), _READING * max(float(np.linalg.norm(one)), 1.0)
        if not (own and self.audited.confidential):
            self.largest = max(self.largest, change)
        if joined:
            holds = change <= 1.0 + ROUNDING_ALLOWANCE + reading
            self.alarms.must(holds, f"One record changed a local evaluation by more than its bound ({about}).")
        else:
            self.alarms.must(change == 0.0, f"A record that did not join changed a local evaluation ({about}).")

    def company(self, among_others: Sums, alone: Sums) -> None:
        """Require that a record adds the same to a crowd's sum as to an empty one, up to the lattice's rounding."""
        holds = float(np.abs(among_others - alone).max()) <= _LATTICE
        self.alarms.must(holds, "What a record adds to a local evaluation depends on who else joins it.")


def _sums(client: AskedClient, grant: Grant, parameters: Parameters) -> Sums:
    """Return the noisy sums that the local evaluation of a grant released.

    Raises:
        NoUpdateError: the client sent none.
    """
    sums = client.answer(grant, parameters).receipt.noisy_sums
    if not sums:
        raise NoUpdateError("The client was granted a local evaluation, and sent none.")
    return np.array(sums, dtype=np.float64)


def _known_scores(found: _Found) -> None:
    """Test scores beyond their bounds, and none: each moves the sum by at most its bound, in any company."""
    audited, number = found.audited, 3
    task, grant = Scored.like(audited, [number]), evaluation_grant(audited, sampling_rate=1.0)
    client = audited.client_of(task, shard_with_scores([], task))

    def sums(*rows: Sequence[float]) -> Sums:
        return _sums(client.holding(shard_with_scores(rows, task)), grant, zeros_for(task))

    empty = sums()
    crowds: list[list[list[float]]] = [[], [[1.0] * number] * 20, [[0.2, 0.9, WORTHLESS]] * 7]
    for crowd in crowds:
        without = sums(*crowd)
        for score in _EXTREMES:
            for record in ([score] * number, [score, 0.0, 1.0]):
                with_it, alone = sums(*crowd, record), sums(record)
                about = f"a score of {score:g} among {len(crowd)} others"
                found.compare(with_it, without, joined=True, about=about)
                found.company(with_it - without, alone - empty)


def _own_scores(found: _Found) -> None:
    """Records of the task's own kind with its own scores, under usual parameters and hostile ones."""
    audited, quick = found.audited, found.audited.effort is Effort.QUICK
    task = Scored.like(audited, [1])
    known = audited.client_of(task, shard_with_scores([], task))

    def joined(grant: Grant, place: int) -> bool:
        blank = torch.full((place + 1, 1), WORTHLESS)
        shown = blank.clone()
        shown[place] = 1.0
        shards = (shard_with_scores(rows, task) for rows in (blank, shown))
        one, other = (_sums(known.holding(shard), grant, zeros_for(task)) for shard in shards)
        return bool((one != other).any())

    grants = [evaluation_grant(audited, **changed) for changed in ({"sampling_rate": 1.0}, {}, {"round": 2})]
    if not _can_be_scored(found, grants[0]):
        return
    for about, parameters in hostile_parameters(audited):
        empty = _sums(audited.client.holding(without_records(audited.shard)), grants[0], parameters)
        for pair in pairs_of(audited, records=1 if quick else 8):
            clients = audited.client.holding(pair.with_it), audited.client.holding(pair.without)
            for grant in grants:
                one, other = (_sums(client, grant, parameters) for client in clients)
                joins = grant.sampling_rate == 1.0 or joined(grant, pair.place)
                found.compare(one, other, joined=joins, about=f"{pair.about}, {about}", own=True)
                if grant.sampling_rate == 1.0:
                    alone = _sums(audited.client.holding(pair.alone), grant, parameters)
                    found.company(one - other, alone - empty)


def _can_be_scored(found: _Found, grant: Grant) -> bool:
    """Return whether the task's scores can be taken at all; if not, every client refuses before it reads a record."""
    empty = found.audited.client.holding(without_records(found.audited.shard))
    try:
        _sums(empty, grant, found.audited.parameters)
    except NoUpdateError:
        return False
    return True
