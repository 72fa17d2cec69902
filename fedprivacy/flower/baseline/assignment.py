"""The request of a baseline's server to a simulated client: no grant, and nothing that a deployed client's app reads.

By message it is an `Assignment`, and in a cohort that trains together a `BaselineOrder`.

The client takes all training settings from the run's configuration, except the sampling rate, which may differ between
clients: in a simulation server and clients have one owner.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedprivacy.flower.simulated.orders import Order
from fedprivacy.flower.wire.messages import WireMessage


@dataclass(frozen=True, slots=True)
class Assignment(WireMessage):
    """Take a round's local steps without privacy."""

    name = "fedprivacy.assignment"
    client_id: str
    round: int
    sampling_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineOrder(Order):
    """The same without a message: it names no mechanism, and private training cannot do with it."""

    sampling_rate: float
