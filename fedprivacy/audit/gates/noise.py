"""Noise: whether what is added to a sum is Gaussian, as large as it is claimed, everywhere, and never the same twice.

Clients whose records contribute nothing, or who have none, release noise alone. It is measured against what one record
can change: a vector that is clipped or shrunk after the noise was added shrinks both, which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fedprivacy.audit.asking import AskedClient
from fedprivacy.audit.findings import Gate
from fedprivacy.audit.gates.alarms import Alarms, of_correlations, of_counts, of_variance
from fedprivacy.audit.gates.audited import Audited, Effort, Parameters, verdict
from fedprivacy.audit.gates.known import dense, known_of, shard_of, zeros_for
from fedprivacy.flower.wire.messages import Grant
from fedprivacy.gradients import trainable_parameters

_SHRUNK = 2e-3
"""A record whose clipped gradient is this much shorter in the release than its norm was shrunk after the noise."""

_LEAST_DRAWS = 4000
"""Of each layer, as far as so many releases give them: enough to notice a tenth too little noise."""

_FAR = 3.5
"""Standard deviations from which on a draw is in the tails."""

_MOST_DRAWS = 5e7
"""Draws of a large model's noise that are worth the time."""

_HALVINGS = 8
"""How often the noise multiplier is halved to find noise that is not shrunk."""

_LINEAR = 1e-3
"""How far noise may be from twice that of half the noise multiplier: the lattice rounds both."""

_MOST_SHAPED = 200_000
"""Draws whose shape is tested."""


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


def check(audited: Audited) -> Gate:
    """Whether every release carries the noise that is claimed for it."""
    alarms = Alarms()
    known = known_of(audited)
    blank = _of_known(audited)
    _judge(
        alarms, blank, dict(zip(map(str, range(1, len(known.sizes) + 1)), known.sizes, strict=True)), "blank records"
    )
    own = _of_own(audited)
    sizes = {f"'{n}'": p.numel() for n, p in trainable_parameters(audited.task.model()).items()}
    _judge(alarms, own, sizes, "the task's own model")
    deviations = [float(np.sqrt(np.mean(np.square(r.noise)))) for r in blank]
    return verdict(
        "noise",
        "Every release carries Gaussian noise of the claimed size in every coordinate, drawn anew each time.",
        "Releases without records show the noise that releases with records carry.",
        float(np.mean(deviations)),
        alarms.p_value,
        reasons=alarms.reasons,
    )


def _judge(alarms: Alarms, releases: list[_Release], layers: Mapping[str, int], about: str) -> None:
    """Test noise of one model, by layer and altogether."""
    rows = np.array([release.noise for release in releases])
    bounds = np.cumsum(list(layers.values()))[:-1]
    for (layer, size), part in zip(layers.items(), np.split(rows, bounds, axis=1), strict=True):
        where = f"in layer {layer} of {about}" if size < rows.shape[1] else f"of {about}"
        alarms.test(of_variance(part), f"The noise {where} is {_rms(part):.3g} times what is claimed; it must be 1.")
    alarms.test(of_variance(rows), f"The noise of {about} is {_rms(rows):.3g} times what is claimed; it must be 1.")
    p_value, pair = of_correlations(rows)
    one, other = (releases[number].about for number in pair)
    alarms.test(p_value, f"The noise of {one} can be told from that of {other}: a server could subtract it.")
    squares = np.square(rows).sum(axis=1)
    least, most = (int(edge) for edge in (squares.argmin(), squares.argmax()))
    d = rows.shape[1]
    spread = 2.0 * len(rows) * min(stats.chi2.cdf(squares[least], d), stats.chi2.sf(squares[most], d))
    alarms.test(
        min(1.0, spread),
        f"The noise is not alike in all releases: {_rms(rows[least]):.3g} times what is claimed in {releases[least].about}"
        f" (of {releases[least].records} records), {_rms(rows[most]):.3g} in {releases[most].about} (of "
        f"{releases[most].records}).",
    )
    draws = rows.ravel()[:_MOST_SHAPED]
    shape = f"The noise of {about} is not Gaussian, which is what is accounted for."
    alarms.test(float(stats.kstest(draws, stats.norm.cdf).pvalue), shape)
    alarms.test(of_counts(int((np.abs(draws) > _FAR).sum()), draws.size, 2.0 * stats.norm.sf(_FAR)), shape)


def _rms(draws: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(draws))))


def _positions(audited: Audited, rounds: int) -> Iterator[tuple[str, Grant]]:
    """Rounds, another attempt and another run: each is a name under which noise must be drawn anew."""
    for position in audited.positions(rounds, first=301):
        yield f"round {position['round']}", audited.asking(**position)
    yield "another attempt at a round", audited.asking(round=301, attempt=2)
    yield "a later run", audited.asking(round=301, earlier_runs=1)


def _of_known(audited: Audited) -> list[_Release]:
    """Noise of clients whose records are zeros, few and many, seeded and not, over rounds, steps, attempts and runs."""
    task = known_of(audited)
    d, parameters = sum(task.sizes), zeros_for(task)
    rounds = min(max(math.ceil(_LEAST_DRAWS / min(task.sizes)), 8), 40 if audited.effort is Effort.QUICK else 400)
    client = audited.client_of(task, shard_of(torch.zeros(0, d)))
    record = 1e3 * audited.grant.clipping_norm * dense(task.sizes, audited.generator(7))
    releases = []
    for number, (about, grant) in enumerate(_positions(audited, rounds)):
        records = (0, 3, 40)[number % 3]
        asked = client.holding(shard_of(torch.zeros(records, d)))
        noise = audited.sum(asked, grant, parameters)
        releases.append(_Release(noise / _unit(audited, client, grant, parameters, record), about, records))
    for about, other in _others(audited, client):
        noise = audited.sum(other, audited.asking(round=301), parameters)
        releases.append(_Release(noise / audited.deviation, about, 0))
    if audited.grant.adaptive is None:
        releases += _of_steps(audited, client, parameters, record)
    return releases


def _others(audited: Audited, client: AskedClient) -> Iterator[tuple[str, AskedClient]]:
    """Another client of the run; and clients with secret randomness, one of which is asked twice."""
    yield "another client", client.colleague()
    task = known_of(audited)
    secret = AskedClient(task, shard_of(torch.zeros(0, sum(task.sizes))), seed=None, device=audited.device)
    yield "a client with secret randomness", secret
    yield "a client with secret randomness, asked again", secret
    yield "another client with secret randomness", secret.colleague()


def _of_steps(audited: Audited, client: AskedClient, parameters: Parameters, record: torch.Tensor) -> list[_Release]:
    """Noise of the steps of one round, by an optimiser from which they can be read."""
    steps = audited.sums(client, audited.asking(round=302, steps=4), parameters)
    unit = _unit(audited, client, audited.asking(round=302), parameters, record)
    return [_Release(noise / unit, f"step {n} of round 302", 0) for n, noise in enumerate(steps, 1) if n > 1]


def _unit(audited: Audited, client: AskedClient, grant: Grant, parameters: Parameters, record: torch.Tensor) -> float:
    """One standard deviation of the noise as claimed, in what is released at a position: see `_SHRUNK`."""
    grant = replace(grant, sampling_rate=1.0)
    without, with_it = (
        audited.sum(client.holding(shard_of(records)), grant, parameters)
        for records in (torch.zeros(1, len(record)), record[None])
    )
    change = float(np.linalg.norm(with_it - without)) / audited.grant.clipping_norm
    return audited.deviation * (change if 0.0 < change < 1.0 - _SHRUNK else 1.0)


def _of_own(audited: Audited) -> list[_Release]:
    """Noise of the audited task's own client without a record; scaled back where less of it shows that it is shrunk."""
    sizes = [p.numel() for p in trainable_parameters(audited.task.model()).values()]
    most = 24 if audited.effort is Effort.QUICK else 400
    rounds = min(max(math.ceil(_LEAST_DRAWS / min(sizes)), 8), most, max(int(_MOST_DRAWS / sum(sizes)), 3))
    return [
        _Release(_unshrunk(audited, grant) / audited.deviation, about, 0)
        for about, grant in _positions(audited, rounds)
    ]


def _unshrunk(audited: Audited, grant: Grant) -> NDArray[np.float64]:
    """The noise of a release; where it does not double with the noise multiplier, of one that is not shrunk yet."""
    noise = audited.sum(audited.client, grant, audited.parameters)
    for halvings in range(1, _HALVINGS + 1):
        halved = replace(grant, noise_multiplier=grant.noise_multiplier / 2.0**halvings)
        less = audited.sum(audited.client, halved, audited.parameters)
        if np.linalg.norm(noise - 2.0 * less) <= _LINEAR * np.linalg.norm(noise):
            return noise * 2.0 ** (halvings - 1)
        noise = less
    return noise * 2.0**_HALVINGS
