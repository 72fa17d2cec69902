"""Draws of our client: the noise of its releases, and the records that join its steps.

Clients whose records contribute nothing, or who have none, release noise alone. It is measured against what one record
can change: a vector that is clipped or shrunk after the noise was added shrinks both, which costs no privacy.

Records that each point in a direction of their own, with next to no noise, show who joined a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy.audit.gates import Alarms, p_value_of_variance, rms
from fedprivacy.audit.our_client.audited_client import SILENT, Audited, Parameters, count_weight, noisy_count
from fedprivacy.audit.our_client.probes import Known, dense, known_of, shard_of, zeros_for
from fedprivacy.audit.real_client import AskedClient
from fedprivacy.audit.subject import Counts, Effort, ObservedNoise, Pairs, Samples
from fedprivacy.flower.wire.messages import Grant
from fedprivacy.gradients import trainable_parameters
from fedprivacy.tasks import Shard
from fedprivacy.training.adaptive import QuantileClipping

_SHRUNK = 2e-3
"""A record whose clipped gradient is this much shorter in the release than its norm was shrunk after the noise."""

_LEAST_DRAWS = 4000
"""Minimum draws of each layer's noise, if the releases give as many: enough to notice a tenth too little noise."""

_FIRST = 301
"""The first round in which noise is looked at."""

_CLEARLY = 200
"""Records, for a noise multiplier of one, whose number no noise on the count of adaptive clipping hides."""

_WIDE = 300_000
"""Coordinates of a wide layer, released in four rounds."""

_MOST_DRAWS = 5e7
"""Draws of a large model's noise that are worth the time."""

_HALVINGS = 8
"""Maximum number of times that the noise multiplier is halved to find noise that is not shrunk."""

_LINEAR = 1e-3
"""Relative tolerance when checking that half the noise multiplier gives half the noise: the lattice rounds both."""

_EXPECTED = 30.0
"""Records that should join a step, as far as so many records make them."""

_RECORDS = (128, 1024)
"""Fewest and most records."""

_SECRET = 4
"""Rounds in which a client with secret randomness is asked twice."""

_STEPS = 4
"""Number of steps of each round."""

_LATE = 8
"""Rounds whose last step is looked at, where a round has more."""

_AGAIN: tuple[dict[str, Any], ...] = ({"round": 1, "attempt": 2}, {"round": 1, "earlier_runs": 1})
"""The first round, under two more names."""

_LAGS = (1, 2, 8)
"""Distances, in places, of the records that are compared."""

_LONG = 1e4
"""Norm of a record before it is clipped, in clipping norms."""

_APART = 0.05
"""Relative tolerance between what records add."""


@dataclass(frozen=True, slots=True)
class _Release:
    """Noise that left a client.

    Attributes:
        noise: in standard deviations of what is claimed, shape [d].
        about: which client, round, step and attempt it was.
        records: how many were in the shard.
    """

    noise: NDArray[np.float64]
    about: str
    records: int


def noise(audited: Audited, alarms: Alarms) -> Iterator[ObservedNoise]:
    """Noise of a wide layer, of clients of a known task, and of the audited task's own client without a record."""
    wide = _Blank(audited, Known.like(audited, [_WIDE]))  # so many coordinates that half a percent too little shows
    asked = [audited.asking(**name) for name in audited.positions(4, _FIRST)]
    drawn = np.concatenate(_alone(audited, wide.client, asked, wide.parameters))
    yield ObservedNoise(rows=drawn[None], of=" of a wide layer")
    known = known_of(audited)
    blank = _Blank(audited, known).releases()
    if audited.grant.adaptive is not None:  # whose count stands behind the last layer, where it could be read
        counts = np.array([release.noise[-1] for release in blank if len(release.noise) > sum(known.sizes)])
        alarms.test(
            p_value_of_variance(counts),
            f"The noise on the count that moves the clipping norm is {rms(counts):.3g} times what is claimed.",
        )
        blank = [replace(release, noise=release.noise[: sum(known.sizes)]) for release in blank]
    layers = {f"layer {number}": size for number, size in enumerate(known.sizes, 1)}
    yield _together(blank, layers, " of blank records")
    sizes = {f"layer '{n}'": p.numel() for n, p in trainable_parameters(audited.task.model()).items()}
    yield _together(_own_noise(audited), sizes, " of the task's own model")


def _together(releases: list[_Release], layers: Mapping[str, int], origin: str) -> ObservedNoise:
    rows = np.array([release.noise for release in releases])
    about = [f"{each.about} (of {each.records} records)" for each in releases]
    return ObservedNoise(rows=rows, of=origin, layers=layers, about=about)


def _positions(audited: Audited, rounds: int) -> Iterator[tuple[str, Grant]]:
    """Rounds, another attempt and another run: each is a name under which noise must be drawn anew."""
    for position in audited.positions(rounds, first=_FIRST):
        yield f"round {position['round']}", audited.asking(**position)
    yield "another attempt at a round", audited.asking(round=_FIRST, attempt=2)
    yield "a third attempt", audited.asking(round=_FIRST, attempt=3)
    yield "a later run", audited.asking(round=_FIRST, earlier_runs=1)
    yield "a third run", audited.asking(round=_FIRST, earlier_runs=2)


@dataclass(frozen=True)
class _Blank:
    """Clients of a known task, whose records are zeros or none."""

    audited: Audited
    task: Known

    def records(self, number: int) -> Shard:
        """So many records of zeros."""
        return shard_of(torch.zeros(number, sum(self.task.sizes)))

    @cached_property
    def client(self) -> AskedClient:
        """One without a record."""
        return self.audited.client_of(self.task, self.records(0))

    @property
    def parameters(self) -> Parameters:
        """Those that the clients are sent."""
        return zeros_for(self.task)

    def releases(self) -> list[_Release]:
        """Noise over rounds, attempts and runs, of few records and many; of other clients; and of several steps."""
        quick = self.audited.effort is Effort.QUICK
        rounds = min(max(math.ceil(_LEAST_DRAWS / min(self.task.sizes)), 8), 24 if quick else 400)
        positions = enumerate(_positions(self.audited, rounds))
        found = [self._at(about, grant, (0, 3, 40)[number % 3]) for number, (about, grant) in positions]
        found += [self._of(about, client) for about, client in self._others()]
        return found + (self._step_noise() if self.audited.grant.adaptive is None else self._adapting_step_noise())

    def _at(self, about: str, grant: Grant, records: int) -> _Release:
        """Noise at a position, in what a record moves there."""
        asked = self.client.holding(self.records(records))
        released, answer = self.audited.answer(asked, grant, self.parameters)
        noise = released / self._unit(grant)
        if grant.adaptive is None:
            return _Release(noise, about, records)
        counted = noisy_count(grant.adaptive, grant, answer.receipt.clipping_norm)
        half = 0.5 * count_weight(grant.adaptive, grant.clipping_norm)
        centred = counted - half * self._joined_records(grant, records)
        return _Release(np.append(noise, centred / self.audited.deviation), about, records)

    def _joined_records(self, grant: Grant, records: int) -> int:
        """Number of records of zeros that joined: the same as of records that can be counted."""
        norm = grant.clipping_norm
        crowd = torch.zeros(records, sum(self.task.sizes))
        crowd[:, 0] = 1e4 * norm
        silent = replace(grant, noise_multiplier=SILENT, expected_batch_size=1e3)
        released = self.audited.sum(self.client.holding(shard_of(crowd)), silent, self.parameters)
        return round(float(released[0]) / norm)

    def _unit(self, grant: Grant) -> float:
        """One standard deviation of the noise as claimed; where it is shrunk, in what a record moves at a position."""
        if self._unshrunk == 1.0:
            return self.audited.deviation
        record = 1e4 * grant.clipping_norm * dense(self.task.sizes, self.audited.generator(7))
        grant = replace(grant, sampling_rate=1.0)
        shards = self.records(1), shard_of(record[None])
        without, with_it = (self.audited.sum(self.client.holding(s), grant, self.parameters) for s in shards)
        change = float(np.linalg.norm(with_it - without)) / grant.clipping_norm
        return self.audited.deviation * (change if 0.0 < change < 1.0 - _SHRUNK else 1.0)

    def _others(self) -> Iterator[tuple[str, AskedClient]]:
        """Another client of the run; and clients with secret randomness, one of which is asked twice."""
        yield "another client", self.client.colleague()
        secret = self.audited.client_of(self.task, self.records(0), secret=True)
        yield "a client with secret randomness", secret
        yield "a client with secret randomness, asked again", secret
        yield "another client with secret randomness", secret.colleague()

    @cached_property
    def _unshrunk(self) -> float:
        """Factor on the noise multiplier with which nothing shrinks the noise."""
        return 2.0 ** -_halvings(self.audited, self.client, self.audited.asking(round=_FIRST), self.parameters)

    def _of(self, about: str, client: AskedClient) -> _Release:
        """Noise of another client in the first round."""
        sigma = self.audited.grant.noise_multiplier * self._unshrunk
        noise = self.audited.sum(client, self.audited.asking(round=_FIRST, noise_multiplier=sigma), self.parameters)
        return _Release(noise / (self.audited.deviation * self._unshrunk), about, 0)

    def _step_noise(self) -> list[_Release]:
        """Noise of the steps of one round."""
        sigma = self.audited.grant.noise_multiplier * self._unshrunk
        grant = self.audited.asking(round=_FIRST + 1, steps=_STEPS, noise_multiplier=sigma)
        steps = self.audited.sums(self.client, grant, self.parameters)
        deviation = self.audited.deviation * self._unshrunk
        named = [(f"step {n} of round {grant.round}", noise) for n, noise in enumerate(steps, 1)]
        return [_Release(noise / deviation, about, 0) for about, noise in named[1:]]

    def _adapting_step_noise(self) -> list[_Release]:
        """Noise of the steps of one round whose clipping norm falls, because all records are within it."""
        grant = self.audited.asking(round=_FIRST + 1, steps=2 * _STEPS, sampling_rate=1.0, expected_batch_size=1.0)
        records = math.ceil(_CLEARLY * grant.noise_multiplier)
        client = self.client.holding(self.records(records))
        adaptive = grant.adaptive or QuantileClipping()
        steps = self.audited.sums(client, grant, self.parameters)
        receipts = [client.answer(replace(grant, steps=n), self.parameters).receipt for n in range(1, grant.steps)]
        norms = [grant.clipping_norm, *(receipt.clipping_norm for receipt in receipts)]
        each = self.audited.deviation / self.audited.sensitivity
        return [
            _Release(noise / (each * adaptive.sensitivity(norm)), f"step {n} of round {grant.round}", records)
            for n, (noise, norm) in enumerate(zip(steps, norms, strict=True), 1)
            if n > 1
        ]


def _halvings(audited: Audited, client: AskedClient, grant: Grant, parameters: Parameters) -> int:
    """Number of halvings of the noise multiplier until a further one also halves the noise of a blank release."""
    noise = audited.sum(client, grant, parameters)
    for halvings in range(_HALVINGS):
        halved = replace(grant, noise_multiplier=grant.noise_multiplier / 2.0 ** (halvings + 1))
        less = audited.sum(client, halved, parameters)
        if np.linalg.norm(noise - 2.0 * less) <= _LINEAR * np.linalg.norm(noise):
            return halvings
        noise = less
    return _HALVINGS


def _alone(
    audited: Audited, client: AskedClient, grants: Sequence[Grant], parameters: Parameters
) -> list[NDArray[np.float64]]:
    """Noise of a client without a record, in claimed deviations, with a multiplier so small that nothing shrinks it."""
    factor = 2.0 ** -_halvings(audited, client, grants[0], parameters)
    less = [replace(grant, noise_multiplier=grant.noise_multiplier * factor) for grant in grants]
    return [audited.sum(client, grant, parameters) / (audited.deviation * factor) for grant in less]


def _own_noise(audited: Audited) -> list[_Release]:
    """Noise of the audited task's own client without a record."""
    sizes = [p.numel() for p in trainable_parameters(audited.task.model()).values()]
    most = 24 if audited.effort is Effort.QUICK else 400
    rounds = min(max(math.ceil(_LEAST_DRAWS / min(sizes)), 8), most, max(int(_MOST_DRAWS / sum(sizes)), 3))
    about, grants = zip(*_positions(audited, rounds), strict=True)
    noise = _alone(audited, audited.client, grants, audited.parameters)
    return [_Release(each, name, 0) for each, name in zip(noise, about, strict=True)]


def samples(audited: Audited, alarms: Alarms) -> Iterator[Samples]:
    """Samples at the run's own rate, and at one half."""
    for rate in dict.fromkeys((audited.grant.sampling_rate, 0.5)):
        yield from _samples_at_rate(audited, alarms, rate)


def _samples_at_rate(audited: Audited, alarms: Alarms, rate: float) -> Iterator[Samples]:
    """Samples of many rounds, and those of the last steps of some."""
    fewest, most = _RECORDS
    records, norm = min(max(math.ceil(_EXPECTED / rate), fewest), most), audited.grant.clipping_norm
    task = Known.like(audited, [records])
    shard, zeros = shard_of(_LONG * norm * torch.eye(records)), zeros_for(task)
    client, secret = audited.client_of(task, shard), audited.client_of(task, shard, secret=True)
    steps = 1 if audited.grant.adaptive is not None else _STEPS
    grant = audited.asking(sampling_rate=rate, noise_multiplier=SILENT, steps=steps)
    positions = audited.positions(16 if audited.effort is Effort.QUICK else 100)
    rounds = [
        _joined_counts(alarms, audited.sums(client, replace(grant, **name), zeros), norm)
        for name in [*_AGAIN, *positions]
    ]
    twice = [replace(grant, steps=1, **name) for name in audited.positions(_SECRET) for _ in range(2)]
    # one step: for each number of steps it would draw anew
    in_secret = [_joined_counts(alarms, audited.sums(secret, asked, zeros), norm) for asked in twice]
    yield Samples(rate=rate, rounds=[*rounds, *in_secret], pairs=[*_pairs(rounds, in_secret)])
    if rate < 1.0 and audited.grant.steps > steps and audited.grant.adaptive is None:
        late = replace(grant, steps=audited.grant.steps)
        last = [
            audited.sums(client, replace(late, **name), zeros, first=late.steps)[0] for name in audited.positions(_LATE)
        ]
        yield Samples(rate=rate, rounds=[_joined_counts(alarms, last, norm)])


def _joined_counts(alarms: Alarms, sums: list[NDArray[np.float64]], clipping_norm: float) -> Counts:
    """Count how often records joined: one that adds nothing did not, and all others must add the same, at most C."""
    joined = []
    for released in sums:
        times = released / clipping_norm
        some = times > 0.05 * times.max(initial=0.05)
        usual = float(np.median(times[some])) if some.any() else 1.0  # a sum that is shrunk after the noise is shorter
        counted = np.rint(times / usual)
        alike = bool((np.abs(times / usual - counted) < _APART).all()) and usual < 1.0 + _APART
        alarms.must(alike, "What a record adds to a step depends on who else joins it.")
        joined.append(counted)
    counts: Counts = np.nan_to_num(np.array(joined)).astype(np.int_)
    return counts


def _pairs(rounds: list[Counts], in_secret: list[Counts]) -> Iterator[Pairs]:
    """Steps, rounds, attempts, runs, trainings with secret randomness, and neighbouring records."""
    of_round = [pair for sample in [*rounds, *in_secret] for pair in _by_twos(list(sample))]
    attempt, later, *others = rounds
    yield Pairs("Two steps of a round", of_round)
    yield Pairs("Two rounds", _by_twos([sample[0] for sample in others]))
    yield Pairs("Two attempts at a round", list(zip(others[0], attempt, strict=True)))
    yield Pairs("Two runs", list(zip(others[0], later, strict=True)))
    yield Pairs("Two trainings of a client with secret randomness", _by_twos(in_secret))
    every = np.concatenate([*rounds, *in_secret])
    for lag in _LAGS:
        blocks = every[:, : every.shape[1] // (2 * lag) * 2 * lag].reshape(len(every), -1, 2, lag)
        yield Pairs(f"Records that are {lag} places apart", [(blocks[:, :, 0], blocks[:, :, 1])], "steps")


def _by_twos(samples: list[Counts]) -> list[tuple[Counts, Counts]]:
    return list(zip(samples[::2], samples[1::2], strict=False))
