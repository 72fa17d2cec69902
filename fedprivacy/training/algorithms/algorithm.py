"""What a federated algorithm is: how a client spends a round's private steps, what it keeps, and what it sends.

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

if TYPE_CHECKING:  # the names of the algorithms are asked for by every `--help`, which need not wait for torch
    from torch import Tensor, nn


class Descend(Protocol):
    """Takes private local steps."""

    def __call__(
        self, start: Tensor, steps: int, *, correction: Tensor | None = None, only: Tensor | None = None
    ) -> Tensor:
        """Where so many steps lead to.

        Args:
            start: where they begin, shape [..., d]. It is not changed.
            steps: how many, each one of those that were granted.
            correction: added to every noisy mean gradient, shape [..., d].
            only: which parameters move, of type bool, shape [d]; None: all.

        Raises:
            StepsExceededError: fewer are left of those that were granted. No record has been read for it.
        """
        ...


class StepsExceededError(RuntimeError):
    """An algorithm asks for more private steps than were granted."""


@dataclass(frozen=True, slots=True)
class LocalRound:
    """What an algorithm has of a client in a round.

    Attributes:
        shared: the global model, shape [..., d].
        own: what the client kept of its last round, of the same shape; in its first, what `Algorithm.first` says.
        control: what the server sends besides the model, as `Algorithm.server` has it; None: nothing yet.
        personal: which parameters are in personal layers, of type bool, shape [d]; None: the algorithm has none.
        steps: private steps that were granted, at least 1.
        learning_rate: of the local steps.
        descend: takes them.
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
    """What a client has after a round.

    Attributes:
        sent: the parameters that the server averages, shape [..., d]. What is not to leave has the server's own values.
        kept: what the client itself keeps for its next round, of the same shape; None: nothing.
    """

    sent: Tensor
    kept: Tensor | None = None


class ServerHalf(Protocol):
    """What an algorithm has the server do besides averaging."""

    def advanced(self, control: Tensor | None, start: Tensor, mean: Tensor, turnout: Turnout) -> Tensor:
        """What the server sends with the next model.

        Args:
            control: what it sent with this round's, shape [d]; None: nothing.
            start: this round's model, shape [d].
            mean: the average of what clients sent, shape [d].
            turnout: who they were.
        """
        ...


@dataclass(frozen=True, slots=True)
class Turnout:
    """Who took part in a round, as far as a `ServerHalf` needs to know: public numbers.

    Attributes:
        share: weight of those whose updates were averaged, of the weight of all that ever were, this round's included.
        steps: local steps of each.
        learning_rate: of these steps.
    """

    share: float
    steps: int
    learning_rate: float


class Algorithm(Protocol):
    """One federated algorithm, on the client and on the server: the settings of both are its attributes.

    Attributes:
        keeps: whether clients keep something from round to round.
        personal: whether what they keep is a model of their own, or a part of one.
        fewest_steps: local steps in a round; with fewer it is another algorithm, or none.
        plain_sgd: whether local steps must be plain gradient descent.
        server: what the server does besides averaging; None: nothing.
    """

    keeps: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    fewest_steps: ClassVar[int] = 1
    plain_sgd: ClassVar[bool] = False
    server: ClassVar[ServerHalf | None] = None

    def first(self, shared: Tensor, control: Tensor | None) -> Tensor:
        """What a client that has kept nothing yet is taken to have kept, shape [d]. Default: the global model."""
        return shared

    def layers(self, model: nn.Module) -> frozenset[str]:
        """The names of the trained parameters in personal layers. Default: there are none.

        Raises:
            ValueError: the model has no such layers, or no others.
        """
        return frozenset()

    def train(self, client: LocalRound) -> LocalUpdate:
        """One round on one client, or on several at once."""
        ...

    def model(self, shared: Tensor, kept: Tensor, personal: Tensor | None) -> Tensor:
        """The model that a client uses, shape [..., d]. Default: the one that it kept, if that is what it keeps."""
        return kept if self.personal else shared
