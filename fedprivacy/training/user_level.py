"""User-level privacy by a trusted server: each client's whole update is clipped, the sum gets Gaussian noise, once.

DP-FedAvg (McMahan, Ramage, Talwar, Zhang 2018, arXiv 1710.06963). It protects a client with all its records against
anybody who sees the global models. Clients join by Poisson sampling and count alike whatever their shards' sizes. The
sum is divided by the *expected* number of clients that join, which is public; the number that did join is not.

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
"""Largest relative excess of a clipped update's norm over C in float64: for d parameters, d 2^-52."""

CLIENT_ALLOWANCE = NORM_ALLOWANCE + LATTICE_ALLOWANCE / 2.0
"""Largest relative excess over C of a client's change of the sum; the noise is scaled up to cover it."""

LEARNING_RATE = 0.2
"""Rate eta_C of adaptive clipping: distance that log C moves when every update is on one side (Andrew et al. use it).
"""

MOST_OF_THE_COUNT = 1.0 / 16.0
"""Maximum share of the mechanism's privacy that goes to the count, reached by small cohorts: z_delta is then 1.033 z.
"""

Update = NDArray[np.float64]
"""A client's parameters minus the global model's, flat, shape [d]."""


@dataclass(frozen=True, slots=True)
class ReleasedMean:
    """The release of a round; everything else in the round is the server's secret."""

    mean: Update  # noisy sum over the expected number of clients, shape [d]
    clipping_norm: float  # clipping norm of the next round


@dataclass(frozen=True, slots=True)
class ClippedClientSum:
    """The noisy sum of clipped updates over a Poisson sample of the clients.

    Formal guarantee: the release of a round, `ReleasedMean`, is dominated by `event` where a neighbouring federation
    has one client more or less, whatever that client sends, if `draw_clients` selects the contributing clients, each
    once.

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
    next model are post-processing. Without the client, every other client joins as before: `draw_clients` draws for
    each one by itself.

    Attributes:
        event: probability q with which a client joins, noise multiplier z and relation; it determines the cost of a
            round.
        clients: public number of clients: the sum is divided by q times this.
        adaptive: rule that moves the clipping norm; None: it stays.
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
        """Average number of clients that join: the divisor of the sum."""
        return self.event.sampling_rate * self.clients

    def draw_clients(self, client_ids: Iterable[str], keystream: Keystream, position: Position) -> set[str]:
        """Draw the clients that join the round; possibly none.

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
        self, updates: Iterable[Update], dimension: int, clipping_norm: float, keystream: Keystream, position: Position
    ) -> ReleasedMean:
        """Clip, sum, add noise once, divide. The sum over no updates is released like any other.

        Args:
            updates: updates of the clients that joined, one each, of shape [dimension].
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
        return ReleasedMean(noisy[:dimension] / self.expected_clients, moved)

    def _contribution(self, update: Update, clipping_norm: float) -> Update:
        """Clip an update; with adaptive clipping, append the coordinate that counts updates within the norm."""
        clipped, within = clipped_update(update, clipping_norm)
        if self.adaptive is None:
            return clipped
        centred = 0.0 if within is None else (0.5 if within else -0.5)
        return np.append(clipped, centred * self.adaptive.weight(clipping_norm))


def clipped_update(update: Update, clipping_norm: float) -> tuple[Update, bool | None]:
    """Scale an update to a norm of at most C; also tell whether it was within C. Zero and None if it is not finite.

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
    """Make adaptive clipping that splits the noise as Andrew et al. 2021 do, for one mechanism with this noise
    multiplier.

    They release the sum with noise multiplier z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), and the count of clients within
    C, each counted 1/2 or -1/2, with standard deviation sigma_b; together that costs as much as z (their theorem 1).
    Here both are coordinates of one vector, and the count has a share of the squared sensitivity. The two views agree
    if the share is (z / 2 sigma_b)^2.

    Args:
        noise_multiplier: z.
        expected_clients: average number of clients that join a round.
        quantile: gamma, the target share of updates within C.
        count_noise: sigma_b, in clients; None: a twentieth of `expected_clients`, as they recommend, or more, so that
            the count's share is at most `MOST_OF_THE_COUNT`.

    Raises:
        ValueError: sigma_b is so small that no privacy is left for the sum.
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
    """Derive 64 bits for one client in one round by keyed BLAKE2b, as keystreams are derived."""
    label = f"clients/{position.round}/{position.step}/{client_id}".encode()
    return int.from_bytes(hashlib.blake2b(label, key=keystream.key, digest_size=8).digest(), "little")
