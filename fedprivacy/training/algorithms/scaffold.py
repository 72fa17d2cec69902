"""SCAFFOLD (Karimireddy et al. 2020) with controls of noisy gradients: DP-SCAFFOLD (Noble, Bellet, Dieuleveut 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate, RoundTurnout, ServerHalf

if TYPE_CHECKING:
    from torch import Tensor


class MeanControl:
    """The server's control c: the mean of the controls c_k of all clients that took part so far.

    Clients send no controls. With K steps of learning rate eta from x, corrected by c - c_k, a client arrives at
    y = x - K eta (g - c_k + c), g being the mean of its noisy gradients, which is its next control. So
    (x - y) / (K eta) - c = g - c_k is how much its control moves, and the average of the models tells the average of
    these.
    """

    def advance(self, control: Tensor | None, start: Tensor, mean: Tensor, turnout: RoundTurnout) -> Tensor:
        moved = (start - mean) / (turnout.steps * turnout.learning_rate)
        return moved if control is None else control + turnout.share * (moved - control)


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Local steps corrected by c - c_k, the mean of all clients' gradients minus the client's own.

    A client's control c_k is the mean of the noisy gradients of its last round: post-processing, no further charge. A
    client that takes part for the first time is not corrected (c_k = c), and its gradients join the mean: this is the
    warm start, which wastes no round. In a run where every client's update arrives, c is exactly the weighted mean of
    all c_k; an update that is lost changes c_k but not c.
    """

    keeps: ClassVar[bool] = True
    plain_sgd: ClassVar[bool] = True
    server: ClassVar[ServerHalf] = MeanControl()

    def first(self, shared: Tensor, control: Tensor | None) -> Tensor:
        return shared.new_zeros(shared.shape) if control is None else control

    def train(self, client: LocalRound) -> LocalUpdate:
        correction = client.control - client.own if client.control is not None else None
        model = client.descend(client.shared, client.steps, correction=correction)
        told = (client.shared - model) / (client.steps * client.learning_rate)
        return LocalUpdate(sent=model, kept=told if correction is None else told - correction)
