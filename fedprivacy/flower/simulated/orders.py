"""Orders for the clients of a population, in place of messages: one for each client, and their common start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedprivacy.flower.client.local import LocalClient
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.training.cohort import Portion, StepMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The training settings of one client of a cohort.

    Attributes:
        part: its part of the task's split.
        mechanism: the mechanism of a local step: with privacy it is the one that was charged for.
        expected_batch_size: public divisor of the sums.
        steps: local steps.
        weight: public weight of its update in the average.
        own: the vector that the client kept in its last round, shape [d]; None: nothing.
    """

    client_id: str
    part: int
    mechanism: StepMechanism
    expected_batch_size: float
    steps: int
    weight: float
    own: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The common start of all clients of a cohort.

    Attributes:
        arrays: the global model.
        round: the round's number.
        keystream: the round's key, from which each client derives a stream of its own.
        proximal_mu: FedProx's pull.
        control: the vector of the algorithm's server half, shape [d]; None: nothing.
    """

    arrays: ArrayRecord
    round: int
    keystream: Keystream
    proximal_mu: float
    control: Tensor | None = None

    def control_for(self, model: nn.Module) -> Tensor | None:
        """The control, on the model's device."""
        return None if self.control is None else self.control.to(next(model.parameters()).device)


TrainTogether = Callable[[RunConfig, Start, Sequence[Order], Sequence[LocalClient]], Iterator[Portion]]
"""Trains clients whose shards are on one device, each by its order, in portions."""
