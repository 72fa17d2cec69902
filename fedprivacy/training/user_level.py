"""User-level privacy by a trusted server: each client's whole update is clipped, the sum gets Gaussian noise, once.

DP-FedAvg (McMahan, Ramage, Talwar, Zhang 2018, arXiv 1710.06963). What is protected is a client with all that it holds,
against whoever sees the global models. Clients join by Poisson sampling, count alike whatever their shards' sizes, and
the sum is divided by the *expected* number of clients that join, which is public; how many did join is not.

With adaptive clipping (Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv 1905.03871) the clipping norm follows a quantile
of the updates' norms: see `count_and_sum`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedprivacy._support.settings import range_words
from fedprivacy.mechanisms.keystream import Keystream, Position, Purpose
from fedprivacy.mechanisms.lattice_noise import LATTICE_ALLOWANCE, add_lattice_noise, lattice_step
from fedprivacy.training.adaptive import QuantileClipping
from fedprivacy.values.events import CLIPPING_NORMS, NeighbouringRelation, PoissonSampledGaussian

NORM_ALLOWANCE = 2.0**-20
"""By how much a clipped update may be longer than C in float64, relative: an update of d parameters by d 2^-52."""

CLIENT_ALLOWANCE = NORM_ALLOWANCE + LATTICE_ALLOWANCE / 2.0
"""By how much one client may move the sum beyond C, relative; the noise is scaled up to cover it."""

LEARNING_RATE = 0.2
"""eta_C of adaptive clipping: how far log C moves when every update is on one side (Andrew et al. recommend it)."""

MOST_OF_THE_COUNT = 1.0 / 16.0
"""The most of the mechanism's privacy that goes to the count, where the cohort is small: z_delta is 1.033 z then."""

Update = NDArray[np.float64]
"""A client's parameters less the global model's, flat, shape [d]."""


@dataclass(frozen=True, slots=True)
class Released:
    """What a round tells: everything else in it is the server's secret."""

    mean: Update  # noisy sum over the expected number of clients, shape [d]
    clipping_norm: float  # of the next round


@dataclass(frozen=True, slots=True)
class ClippedClientSum:
    """The noisy sum of clipped updates over a Poisson sample of the clients.

    Formal guarantee: the release of a round, `Released`, is dominated by `event` where a neighbouring federation has
    one client more or less, whatever that client sends, if `joined` says who contributes, and each of them once.

    Proof. Let v be what a client adds. Its update is scaled by C / norm where the norm, computed in float64, exceeds C:
    the norm of the result is at most C (1 + `NORM_ALLOWANCE`), for up to 2^32 parameters. An update that is not finite
    adds zero; one whose norm overflows is scaled before it is squared. With adaptive clipping a coordinate of absolute
    value w / 2 is added, and the norm is at most S = sqrt(C^2 + w^2 / 4); else S is C. Then v is rounded to whole steps
    of the public lattice, by at most half a step in each coordinate: its norm is at most S (1 + `CLIENT_ALLOWANCE`).
    Whole steps are added in float64 without rounding, in any order, as long as no coordinate reaches 2^53 steps
    (clients times the square root of the parameters below 2^36). So a client moves the sum by v and by nothing
    else, whoever the others are, and the noise has standard deviation z S (1 + `CLIENT_ALLOWANCE`) in every coordinate;
    see `add_lattice_noise`. A client that did not join, or failed, adds zero: the sum over an empty sample is released
    like any other. The divisor, q times a public number of clients, is fixed; dividing, the next clipping norm and the
    next model are post-processing. Without the client, every other client joins as before: `joined` draws for each one
    by itself.

    Attributes:
        event: the probability q with which a client joins, the noise multiplier z and the relation: what a round costs.
        clients: how many there are, a public number: the sum is divided by q times this.
        adaptive: what moves the clipping norm; None: it stays.
    """

    event: PoissonSampledGaussian
    clients: int
    adaptive: QuantileClipping | None = None

    def __post_init__(self) -> None:
        if self.event.relation is not NeighbouringRelation.ADD_OR_REMOVE_ONE:
            raise ValueError(f"relation is {self.event.relation}; clients are added or removed, choose that.")
        if self.clients < 1:
            raise ValueError(f"clients is {self.clients}; choose at least 1.")

    @property
    def expected_clients(self) -> float:
        """How many join on average: the divisor of the sum."""
        return self.event.sampling_rate * self.clients

    def joined(self, client_ids: Iterable[str], keystream: Keystream, position: Position) -> set[str]:
        """Who joins the round, of these clients; maybe nobody.

        Formal guarantee: every client draws a word of 64 bits that depends on (key, round, attempt, client_id) only,
        and joins if it is below floor(q 2^64): with a probability of at most q, independently of every other client.

        Args:
            client_ids: all clients, whether or not they can answer: one that cannot contributes zero.
            keystream: the server's randomness.
            position: the round and the attempt at it.
        """
        bound = math.floor(self.event.sampling_rate * 2.0**64)
        return {client_id for client_id in client_ids if _word(keystream, position, client_id) < bound}

    def release(
        self,
        updates: Iterable[Update],
        dimension: int,
        clipping_norm: float,
        keystream: Keystream,
        position: Position,
    ) -> Released:
        """Clip, sum, add noise once, divide. No update at all is released like any number of them.

        Args:
            updates: of the clients that joined, one each; each of shape [dimension].
            dimension: d, the number of parameters.
            clipping_norm: C, the largest Euclidean norm of a client's update, within `CLIPPING_NORMS`.
            keystream: the server's randomness.
            position: the round and the attempt at it; never the same twice under one secret key.

        Raises:
            ValueError: the clipping norm is out of range, or an update has another shape.
        """
        low, high = CLIPPING_NORMS
        if not low <= clipping_norm <= high:
            words = range_words(low, high, clipping_norm)
            raise ValueError(f"clipping_norm is {clipping_norm}; choose a number {words}.")
        longest = self.adaptive.sensitivity(clipping_norm) if self.adaptive else clipping_norm
        size = dimension + (self.adaptive is not None)
        step, total = lattice_step(longest, size), np.zeros(size)
        for update in updates:
            if update.shape != (dimension,):
                raise ValueError(f"an update has shape {list(update.shape)}; the model has {dimension} parameters.")
            total += np.rint(self._contribution(update, clipping_norm) / step)
        scale = self.event.noise_multiplier * longest * (1.0 + CLIENT_ALLOWANCE)
        read = keystream.reader(Purpose.NOISE, position)
        noisy = add_lattice_noise(torch.from_numpy(total * step), scale, step, read).numpy()
        moved = clipping_norm
        if self.adaptive:
            moved = self.adaptive.next_norm(float(noisy[-1]), clipping_norm, self.expected_clients)
        return Released(noisy[:dimension] / self.expected_clients, moved)

    def _contribution(self, update: Update, clipping_norm: float) -> Update:
        """What a client adds to the sum: its clipped update, and whether that was short enough, where this counts."""
        clipped, within = clipped_update(update, clipping_norm)
        if self.adaptive is None:
            return clipped
        centred = 0.0 if within is None else (0.5 if within else -0.5)
        return np.append(clipped, centred * self.adaptive.weight(clipping_norm))


def clipped_update(update: Update, clipping_norm: float) -> tuple[Update, bool | None]:
    """An update scaled to a norm of at most C, and whether it was within it; zero and None where it is not finite.

    >>> clipped_update(np.array([3.0, 4.0]), 1.0)
    (array([0.6, 0.8]), False)
    >>> clipped_update(np.array([1e308, -1e308]), 1.0)[0].round(3).tolist()  # the square of its norm overflows
    [0.707, -0.707]
    """
    peak = float(np.abs(update).max(initial=0.0))
    if not math.isfinite(peak):
        return np.zeros_like(update), None
    if peak == 0.0:
        return update, True
    unit = update / peak
    length = math.sqrt(float(unit @ unit))  # from 1 to sqrt(d)
    if peak <= clipping_norm / length:
        return update, True
    return unit * (clipping_norm / length), False


def count_and_sum(
    noise_multiplier: float, expected_clients: float, quantile: float = 0.5, count_noise: float | None = None
) -> QuantileClipping:
    """Adaptive clipping as Andrew et al. 2021 split the noise, for one mechanism with this noise multiplier.

    They release the sum with noise multiplier z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), and the count of clients within
    C, each counted 1/2 or -1/2, with standard deviation sigma_b; together that costs as much as z (their theorem 1).
    Here both are coordinates of one vector, and the count has a share of the squared sensitivity. The two are the same:
    the share is (z / 2 sigma_b)^2.

    Args:
        noise_multiplier: z.
        expected_clients: that join a round.
        quantile: gamma, the share of updates that shall be within C.
        count_noise: sigma_b, in clients; None: a twentieth of `expected_clients`, as they recommend, but so much that
            the count's share is `MOST_OF_THE_COUNT` at most.

    Raises:
        ValueError: sigma_b is so small that nothing of z is left for the sum.
    """
    if count_noise is None:
        count_noise = max(expected_clients / 20.0, noise_multiplier / (2.0 * math.sqrt(MOST_OF_THE_COUNT)))
    if not 2.0 * count_noise > noise_multiplier:
        raise ValueError(
            f"count_noise is {count_noise}, which alone costs more than a noise multiplier of {noise_multiplier} "
            "allows; choose more than half of that."
        )
    share = (noise_multiplier / (2.0 * count_noise)) ** 2
    return QuantileClipping(quantile=quantile, learning_rate=LEARNING_RATE, share=share)


def _word(keystream: Keystream, position: Position, client_id: str) -> int:
    """64 bits for one client in one round: keyed BLAKE2b, as wherever a keystream derives."""
    label = f"clients/{position.round}/{position.step}/{client_id}".encode()
    return int.from_bytes(hashlib.blake2b(label, key=keystream.key, digest_size=8).digest(), "little")
