"""Accounts of a training on one shard: a step is charged first, and its one release is what comes of the charge."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedprivacy.accounting.filters import FixedMechanismFilter
from fedprivacy.guard import Guard
from fedprivacy.guard.errors import AlreadyChargedError, BudgetExhaustedError, SealError
from fedprivacy.mechanisms.keystream import Position
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, NeighbouringRelation, PoissonSampledGaussian

_NORM = struct.Struct("<d")


class Release(NamedTuple):
    """The results of one step's mechanism."""

    gradient: Tensor  # noisy mean gradient, shape [d], float32
    following: float  # clipping norm of the next step


Compute = Callable[[Position], Release]
"""(position of the randomness, of no other charge) -> the release there."""


class StepAccount(Protocol):
    """An account of one shard, for one training."""

    def history(self) -> Mapping[Event, int]:
        """Return the number of charged steps of each event."""

    def quota(self, event: PoissonSampledGaussian) -> int:
        """Return how many more steps of an event the budget allows."""

    def noise_multiplier(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
        """Return the smallest noise multiplier with which the budget allows `steps` more steps, or raise ValueError."""

    def release(self, step: int, event: PoissonSampledGaussian, compute: Compute) -> Release:
        """Charge a step, counted from 1, then compute and return its release.

        Formal guarantee: for every charge at most one release is ever returned, and `compute` is called only after the
        charge.

        Raises:
            BudgetExhaustedError: the budget allows no further step. Nothing was computed.
        """


class PassingAccount:
    """An account that ends with the process. A charge whose computation fails stands, and buys nothing more."""

    def __init__(self, budget: PrivacyBudget) -> None:
        self._filter, self._history = FixedMechanismFilter(budget), dict[Event, int]()

    def history(self) -> Mapping[Event, int]:
        """See `StepAccount`."""
        return self._history

    def quota(self, event: PoissonSampledGaussian) -> int:
        """See `StepAccount`."""
        return self._filter.quota(self._history, event)

    def noise_multiplier(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
        """See `StepAccount`."""
        return self._filter.noise_multiplier(sampling_rate, steps, relation)

    def release(self, step: int, event: PoissonSampledGaussian, compute: Compute) -> Release:
        """See `StepAccount`."""
        if self.quota(event) < 1:
            budget = self._filter.budget
            raise BudgetExhaustedError(
                f"epsilon is {budget.epsilon} at delta {budget.delta}, and its {sum(self._history.values())} steps of "
                f"{event} are spent. Train no more; a larger budget must be fixed before a training begins."
            )
        self._history[event] = charged = self._history.get(event, 0) + 1
        return compute(Position(1, charged))


class KeptAccount:
    """An account in a guard's file, which outlives the process and may count other trainings, too.

    A release is sealed in the file before it is returned. So a charge without a sealed release has shown nothing to
    anybody, and a process that takes over from one that died computes it under the same charge; a sealed one is
    returned again, bit for bit. If it is no longer there, the step is charged once more, and has other noise.

    The position of a release is the place of its charge among all charges of the file, which was renewed so many times.
    So no two releases of an account, or of one and its former ones, share their noise, under one seed and in any order
    of trainings, and a release that is computed again has its own.
    """

    def __init__(self, guard: Guard, run: str) -> None:
        self._guard, self._run = guard, run

    def history(self) -> Mapping[Event, int]:
        """See `StepAccount`."""
        return self._guard.history()

    def quota(self, event: PoissonSampledGaussian) -> int:
        """See `StepAccount`."""
        return self._guard.quota(event)

    def noise_multiplier(self, sampling_rate: float, steps: int, relation: NeighbouringRelation) -> float:
        """See `StepAccount`."""
        return self._guard.noise_multiplier(sampling_rate, steps, relation)

    def release(self, step: int, event: PoissonSampledGaussian, compute: Compute) -> Release:
        """See `StepAccount`."""
        attempt = Attempt(self._run, step)
        while True:
            try:
                self._guard.charge(attempt, event, 1)
            except AlreadyChargedError:
                if self._place_and_event(attempt)[1] != event:
                    attempt = attempt.again
                    continue
                if (sealed := self._guard.sealed_update(attempt) or self._guard.adopt_update(attempt)) is not None:
                    return _unpack(sealed)
            release = compute(Position(1 + self._guard.renewals, self._place_and_event(attempt)[0]))
            try:
                self._guard.seal(attempt, _pack(release))
            except SealError:  # it was released before, and the file no longer has it
                attempt = attempt.again
            else:
                return release

    def _place_and_event(self, attempt: Attempt) -> tuple[int, Event]:
        """Return the place of a charge among all charges of the file, counted from 1, and its event."""
        charges = enumerate(self._guard.charges(), 1)
        return next((place, charge.event) for place, charge in charges if charge.attempt == attempt)


def _pack(release: Release) -> bytes:
    return _NORM.pack(release.following) + release.gradient.cpu().numpy().astype("<f4", copy=False).tobytes()


def _unpack(sealed: bytes) -> Release:
    gradient = np.frombuffer(sealed, dtype="<f4", offset=_NORM.size).astype(np.float32)
    return Release(torch.from_numpy(gradient), _NORM.unpack_from(sealed)[0])
