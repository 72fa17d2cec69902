"""What the clients of a population are asked for, one by one and together: what messages would say to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedprivacy.flower.client.local import LocalClient
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.training.cohort import Portion
from fedprivacy.values.events import PoissonSampledGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one client of a cohort trains with, however it trains.

    Attributes:
        part: of the task's split.
        expected_batch_size: public divisor of the sums.
        steps: local steps.
        weight: of its update in the average, public.
        own: what the client kept of its last round, shape [d]; None: nothing.
    """

    client_id: str
    part: int
    expected_batch_size: float
    steps: int
    weight: float
    own: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateOrder(Order):
    """What it may spend besides: what a grant says to it.

    Attributes:
        event: what a local step costs.
        clipping_norm: with which it begins.
    """

    event: PoissonSampledGaussian
    clipping_norm: float


@dataclass(frozen=True, slots=True)
class Start:
    """Where and how all clients of a cohort begin.

    Attributes:
        arrays: the global model.
        round: its number.
        keystream: of whose key each client has a stream of its own.
        proximal_mu: FedProx's pull.
        apart: whether each client's update is kept by itself, instead of being added to the others'.
        control: what the algorithm's server half sends, shape [d]; None: nothing.
    """

    arrays: ArrayRecord
    round: int
    keystream: Keystream
    proximal_mu: float
    apart: bool = False
    control: Tensor | None = None

    def control_for(self, model: nn.Module) -> Tensor | None:
        """The control, where a model is."""
        return None if self.control is None else self.control.to(next(model.parameters()).device)


TrainTogether = Callable[[RunConfig, Start, Sequence[Order], Sequence[LocalClient]], Iterator[Portion]]
"""Trains clients whose shards are on one device, each by its order, in portions."""
