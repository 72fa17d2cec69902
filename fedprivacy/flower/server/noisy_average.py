"""User-level central DP on Flower's side: who joins a round, and the noisy average that the wrapped strategy is given.

The strategy never sees a client's update. It is handed the global model plus the noisy average as the one update of the
round, with weight 1, so that whatever it makes of it is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.user_level_book import UserLevelBook
from fedprivacy.runs.user_level_plan import UserLevelPlan
from fedprivacy.training.user_level import Update
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.user_level import UserLevelSpent

_COMPARE_UPDATES = (
    *(flower.Bulyan, flower.FedMedian, flower.FedTrimmedAvg, flower.MultiKrum, flower.QFedAvg),
    *(flower.FedXgbBagging, flower.FedXgbCyclic),
)
"""Flower's strategies that make something else of the updates than their average."""

_NOISE_OF_THEIR_OWN = (
    *(flower.DifferentialPrivacyServerSideFixedClipping, flower.DifferentialPrivacyClientSideFixedClipping),
    *(flower.DifferentialPrivacyServerSideAdaptiveClipping, flower.DifferentialPrivacyClientSideAdaptiveClipping),
)

OVER = "the next round does not fit the user-level budget"
"""Why a run ends."""


class UserLevelReleases:
    """What the rounds of one run release, and what that costs each client as a whole.

    Args:
        plan: what is released, and within which budget.
        book: where a release is charged before it is made.
        keystream: the server's randomness; secret, but where the run has a seed.
        clipping_norm: where adaptive clipping had arrived when the run was stopped; None: it begins.
    """

    def __init__(
        self, plan: UserLevelPlan, book: UserLevelBook, keystream: Keystream, clipping_norm: float | None = None
    ) -> None:
        self.clipping_norm = plan.clipping_norm if clipping_norm is None else clipping_norm
        self._mechanism, self._book, self._keystream = plan.mechanism, book, keystream

    def why_over(self, attempt: Attempt) -> str:
        """Why the round cannot be opened; empty: it can. It depends on the number of rounds alone."""
        return "" if self._book.allows(attempt) else OVER

    def joined(self, client_ids: Iterable[str], attempt: Attempt) -> set[str]:
        """Who joins the round, of all clients: whether one of them has budget left, or is there, does not count."""
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
        """How the account stands."""
        return self._book.spent(self.clipping_norm)


def check_averages(strategy: Strategy) -> None:
    """Refuse a strategy that would not do what it is for, given one noisy average instead of the clients' updates.

    Raises:
        ConfigError: it is one.
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
    """What clients' training has changed, flat, one client at a time."""
    for update in updates:
        yield _flat(update[name].numpy() for name in start) - flat


def _flat(arrays: Iterable[np.ndarray]) -> Update:
    return np.concatenate([np.ravel(values).astype(np.float64) for values in arrays])
