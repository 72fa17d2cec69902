"""User-level central DP on Flower's side: the sample of clients in a round, and the noisy average of their updates.

The wrapped strategy never sees a client's update. It gets the global model plus the noisy average as the one update of
the round, with weight 1, so that everything it computes from that is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.runs.plans.noise import UserLevelNoise
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.user_level_book import UserLevelBook
from fedprivacy.training.user_level import Update
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.spent import UserLevelSpent

_COMPARE_UPDATES = (
    *(flower.Bulyan, flower.FedMedian, flower.FedTrimmedAvg, flower.MultiKrum, flower.QFedAvg),
    *(flower.FedXgbBagging, flower.FedXgbCyclic),
)
"""Flower's strategies that compute something else from the updates than their average."""

_NOISE_OF_THEIR_OWN = (
    *(flower.DifferentialPrivacyServerSideFixedClipping, flower.DifferentialPrivacyClientSideFixedClipping),
    *(flower.DifferentialPrivacyServerSideAdaptiveClipping, flower.DifferentialPrivacyClientSideAdaptiveClipping),
)

OVER = "the next round does not fit the user-level budget"
"""The reason given when a run ends on its user-level budget."""


class UserLevelReleases:
    """The user-level releases of one run, each charged to an account of each client as a whole.

    Args:
        noise: the mechanism and the budget.
        book: the account that a release is charged to before it is made.
        keystream: the server's randomness; secret unless the run has a seed.
        clipping_norm: the current norm of adaptive clipping when the run was stopped; None: the noise's first.
    """

    def __init__(
        self, noise: UserLevelNoise, book: UserLevelBook, keystream: Keystream, clipping_norm: float | None = None
    ) -> None:
        self.clipping_norm = noise.clipping_norm if clipping_norm is None else clipping_norm
        self._mechanism, self._book, self._keystream = noise.mechanism, book, keystream

    def why_over(self, attempt: Attempt) -> str:
        """The reason why the round cannot be opened; empty: it can. It depends on the number of rounds alone."""
        return "" if self._book.allows(attempt) else OVER

    def joined(self, client_ids: Iterable[str], attempt: Attempt) -> set[str]:
        """Sample the clients that join the round, from all given ones, whether or not they have budget left."""
        return self._mechanism.joined(client_ids, self._keystream, _position(attempt))

    def average(self, attempt: Attempt, model: ArrayRecord, updates: Mapping[str, Message]) -> ArrayRecord:
        """The global model plus the noisy average of the clients' updates; charged first.

        Raises:
            ValueError: the attempt has released its average already, or the budget does not allow it.
            RunFolderError: the charge cannot be written; nothing is released.
        """
        self._book.charge(attempt)
        start = {name: array.numpy() for name, array in model.items()}
        flat = _flat(start.values())
        differences = _differences((reply.content.array_records[ARRAYS] for reply in updates.values()), start, flat)
        released = self._mechanism.release(
            differences, flat.size, self.clipping_norm, self._keystream, _position(attempt)
        )
        self.clipping_norm = released.clipping_norm
        moved = np.split(flat + released.mean, np.cumsum([values.size for values in start.values()])[:-1])
        return ArrayRecord(
            {
                name: Array(part.reshape(old.shape).astype(old.dtype))
                for (name, old), part in zip(start.items(), moved, strict=True)
            }
        )

    def spent(self) -> UserLevelSpent:
        """The current standing of the account."""
        return self._book.spent(self.clipping_norm)


def check_averages(strategy: Strategy) -> None:
    """Refuse a strategy that cannot work with one noisy average instead of the clients' updates.

    Raises:
        ConfigError: the strategy compares updates, or adds noise of its own.
    """
    name = type(strategy).__name__
    if isinstance(strategy, _COMPARE_UPDATES):
        raise ConfigError(
            [
                f"the strategy is {name}, which compares the clients' updates, and with user-level noise there is "
                "nothing but their noisy average; wrap one that averages, such as FedAvg or FedAdam."
            ]
        )
    if isinstance(strategy, _NOISE_OF_THEIR_OWN):
        raise ConfigError(
            [f"the strategy is {name}, which adds noise of its own; wrap the strategy that it wraps instead."]
        )


def _position(attempt: Attempt) -> Position:
    return Position(attempt.round, attempt.attempt)


def _differences(updates: Iterable[ArrayRecord], start: Mapping[str, np.ndarray], flat: Update) -> Iterator[Update]:
    """Yield each client's change of the model, flat, one client at a time."""
    for update in updates:
        yield _flat(update[name].numpy() for name in start) - flat


def _flat(arrays: Iterable[np.ndarray]) -> Update:
    return np.concatenate([np.ravel(values).astype(np.float64) for values in arrays])
