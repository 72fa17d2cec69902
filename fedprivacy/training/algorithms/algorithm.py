"""Protocol of federated algorithms: how a client spends a round's private steps, what it keeps, and what it sends.

Formal guarantee: an algorithm sees parameters, and moves them by `LocalRound.descend` alone, whose every step is one
release of the mechanism that the round was granted, at whatever parameters it is asked for. So all that an algorithm
computes, what it sends and what it keeps for later rounds, is a post-processing of those releases (Dwork, Roth 2014,
proposition 2.1; adaptive composition), and costs what the steps cost: the same event and number, whatever the
algorithm. It cannot take more steps than were granted.

An algorithm is written once, for shapes [..., d]: clients one by one have vectors, and those that train together a
matrix with a row for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:  # every `--help` asks for the names of the algorithms, and need not wait for torch
    from torch import Tensor, nn


LARGEST_PULL = 1e6
"""Largest strength of a penalty that attracts a client's own model towards the global one."""


class Descend(Protocol):
    """Function that takes private local steps."""

    def __call__(
        self, start: Tensor, steps: int, *, correction: Tensor | None = None, only: Tensor | None = None
    ) -> Tensor:
        """Take steps and return the parameters that they lead to.

        Args:
            start: starting point, shape [..., d]. It is not changed.
            steps: number of steps, taken from those that were granted.
            correction: vector added to every noisy mean gradient, shape [..., d].
            only: mask of the parameters that move, bool, shape [d]; None: all.

        Raises:
            StepsExceededError: fewer of the granted steps are left. No record has been read.
        """
        ...


class StepsExceededError(RuntimeError):
    """An algorithm asks for more private steps than were granted."""


@dataclass(frozen=True, slots=True)
class LocalRound:
    """Inputs of an algorithm for one round of a client.

    Attributes:
        shared: the global model, shape [..., d].
        own: vector that the client kept of its last round, of the same shape; in its first round, that of
            `Algorithm.first`.
        control: vector that the server sends besides the model, made by `Algorithm.server`; None: nothing yet.
        personal: mask of the parameters in personal layers, bool, shape [d]; None: the algorithm has none.
        steps: number of private steps that were granted, at least 1.
        learning_rate: step size of the local steps.
        descend: function that takes the steps.
    """

    shared: Tensor
    own: Tensor
    control: Tensor | None
    personal: Tensor | None
    steps: int
    learning_rate: float
    descend: Descend


@dataclass(frozen=True, slots=True)
class LocalUpdate:
    """Results of a client's round.

    Attributes:
        sent: parameters that the server averages, shape [..., d]. Parameters that must not leave the client have the
            server's own values here.
        kept: vector that the client keeps for its next round, of the same shape; None: nothing.
    """

    sent: Tensor
    kept: Tensor | None = None


class ServerHalf(Protocol):
    """The server's part of an algorithm, besides averaging."""

    def advance(self, control: Tensor | None, start: Tensor, mean: Tensor, turnout: RoundTurnout) -> Tensor:
        """Compute the control that the server sends with the next model.

        Args:
            control: control that it sent with this round's model, shape [d]; None: nothing.
            start: this round's model, shape [d].
            mean: average of the parameters that clients sent, shape [d].
            turnout: public numbers about these clients.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoundTurnout:
    """Public numbers about the clients that took part in a round, for a `ServerHalf`.

    Attributes:
        share: weight of the clients whose updates were averaged, relative to all clients that ever were, this round's
            included.
        steps: number of local steps of each client.
        learning_rate: step size of these steps.
    """

    share: float
    steps: int
    learning_rate: float


class Algorithm(Protocol):
    """One federated algorithm, on the client and on the server: the settings of both are its attributes.

    >>> import torch
    >>> class Halfway(Algorithm):
    ...     def train(self, client):
    ...         there = client.descend(client.shared, client.steps)
    ...         return LocalUpdate(sent=client.shared.lerp(there, 0.5))
    >>> model, descend = torch.zeros(2), lambda start, steps: start + steps
    >>> client = LocalRound(model, model, None, None, steps=4, learning_rate=0.1, descend=descend)
    >>> Halfway().train(client).sent
    tensor([2., 2.])

    Attributes:
        keeps: whether clients keep a vector from round to round.
        personal: whether that vector is a model of their own, or a part of one.
        fewest_steps: minimum number of local steps in a round; with fewer it is another algorithm, or none.
        plain_sgd: whether local steps must be plain gradient descent.
        server: the server's part besides averaging; None: nothing.
    """

    keeps: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    fewest_steps: ClassVar[int] = 1
    plain_sgd: ClassVar[bool] = False
    server: ClassVar[ServerHalf | None] = None

    def first(self, shared: Tensor, control: Tensor | None) -> Tensor:
        """Return the vector of a client that has kept none yet, shape [d]. Default: the global model."""
        return shared

    def layers(self, model: nn.Module) -> frozenset[str]:
        """Return the names of the trained parameters in personal layers. Default: none.

        Raises:
            ValueError: the model has no such layers, or only such layers.
        """
        return frozenset()

    def train(self, client: LocalRound) -> LocalUpdate:
        """Run one round on one client, or on several at once."""
        ...

    def model(self, shared: Tensor, kept: Tensor, personal: Tensor | None) -> Tensor:
        """Return the model that a client uses, shape [..., d]. Default: the one that it kept, if it keeps a model."""
        return kept if self.personal else shared


def share_left(pull: float, learning_rate: float, steps: int) -> float:
    """Return the share of the distance to the global model that is left after `steps` steps of the pull alone.

    Each step keeps a share 1 - learning_rate * lambda of it; from lambda = 1 / learning_rate on it keeps none, so that
    a large lambda cannot make the steps diverge.
    """
    return float(max(0.0, 1.0 - learning_rate * pull) ** steps)


def pull_that_leaves(share: float, learning_rate: float, steps: int) -> float:
    """Return the lambda with which `share_left` is `share`, above 0."""
    return float((1.0 - share ** (1.0 / steps)) / learning_rate)


def pull_towards(own: Tensor, shared: Tensor, pull: float, learning_rate: float, steps: int) -> Tensor:
    """Take `steps` steps of gradient descent on lambda/2 |own - shared|^2, for vectors of any shape.

    The result is exactly `own` for lambda = 0 and exactly `shared` from lambda = 1 / learning_rate on.
    """
    return own.lerp(shared, 1.0 - share_left(pull, learning_rate, steps))
