"""What a baseline's server asks a simulated client for: no grant, and nothing that a deployed client's app would read.

What the training is, the client knows from the run's configuration, but for the sampling rate, which may be its own: in
a simulation one owner has both.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedprivacy.flower.wire.messages import WireMessage


@dataclass(frozen=True, slots=True)
class Assignment(WireMessage):
    """Take a round's local steps without privacy."""

    name = "fedprivacy.assignment"
    client_id: str
    round: int
    sampling_rate: float
