"""A server's request to a client, opened once: its content, and the checks before use.

Numbers are checked when the message is opened. Arrays cannot be: their form depends on the client's own task. They stay
as received until `parameters_for` and `control_for` have checked them against the client's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, Message
from torch import Tensor, nn

from fedprivacy._support.failpoints import reach
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.wire.checked_arrays import ArraysError, Form, checked_arrays
from fedprivacy.flower.wire.messages import Grant, MessageError, QuestionGrant, WireMessage
from fedprivacy.gradients import trainable_parameters
from fedprivacy.questions.standardise import STANDARDISE
from fedprivacy.training.local_round import CONTROL
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE

Asks = TypeVar("Asks", bound=WireMessage)


def training_in(message: Message) -> TrainingRequest[Grant]:
    """Open a message that asks for training.

    Raises:
        MessageError: it brings no grant, or a number in it is out of bounds.
    """
    request = TrainingRequest.of(message, Grant)
    reach("client.asked")
    return request


def questions_in(message: Message) -> QuestionGrant:
    """Open a message that asks questions: its grant is all of it.

    Raises:
        MessageError: it brings none, or one that is out of bounds.
    """
    grant = QuestionGrant.of(message)
    reach("client.asked")
    return grant


@dataclass(frozen=True, slots=True)
class TrainingRequest(Generic[Asks]):
    """A request for local training: the grant, and the model to begin with.

    Attributes:
        grant: the allowed spending, and the settings of training.
        proximal_mu: FedProx's pull, from 0 to `LARGEST_LEARNING_RATE`; 0 from every other strategy.
        arrays: the global model, as received.
        standardise: the numbers by which inputs are standardised, as received; None: there are none.
        control: the vector of the algorithm's server half, as received; None: nothing.
    """

    grant: Asks
    proximal_mu: float
    arrays: object
    standardise: object
    control: object

    @classmethod
    def of(cls, message: Message, kind: type[Asks]) -> Self:
        """Open a message; raises `MessageError` as `training_in` does.

        Args:
            message: from the server.
            kind: of record that says what is asked.
        """
        grant = kind.of(message)
        arrays, standardise, control = (message.content.get(name) for name in (ARRAYS, STANDARDISE, CONTROL))
        return cls(grant, _proximal_mu(message.content.get("config")), arrays, standardise, control)

    def parameters_for(self, model: nn.Module) -> dict[str, Tensor]:
        """The global model: the parameters of this client's own, each of its type and shape, finite.

        Raises:
            MessageError: the server sent something else.
        """
        own = trainable_parameters(model)
        forms = {name: Form(tuple(p.shape), torch.empty(0, dtype=p.dtype).numpy().dtype) for name, p in own.items()}
        try:
            received = checked_arrays(self.arrays, forms)
        except ArraysError as error:
            raise MessageError(f"The global model is not this task's ({error}); use one task on both sides.") from error
        return {name: torch.from_numpy(values) for name, values in received.items()}

    def control_for(self, size: int) -> Tensor | None:
        """The control of a model with so many parameters, shape [size]; None: the server sent none.

        Raises:
            ArraysError: the server sent something else.
        """
        if self.control is None:
            return None
        received = checked_arrays(self.control, {CONTROL: Form((size,), np.dtype(np.float32))})
        return torch.from_numpy(received[CONTROL])


def _proximal_mu(settings: object) -> float:
    """The value that Flower's FedProx puts into its messages."""
    value = settings.get("proximal-mu", 0.0) if isinstance(settings, ConfigRecord) else 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= LARGEST_LEARNING_RATE:
        raise MessageError(f"proximal-mu must be a number from 0 to {LARGEST_LEARNING_RATE:g}.")
    return float(value)
