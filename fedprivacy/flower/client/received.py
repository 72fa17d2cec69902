"""What a server's message asks for, read and checked: all of it before anything is charged."""

from __future__ import annotations

import torch
from flwr.app import ConfigRecord, Message
from torch import Tensor, nn

from fedprivacy._support.allocator import keep_freed_memory
from fedprivacy._support.failpoints import reach
from fedprivacy.flower.client.local import LocalClient
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.wire.arrays import ArraysError, Form, checked_arrays
from fedprivacy.flower.wire.crossing import MessageError
from fedprivacy.flower.wire.messages import ENROLMENT_REQUEST, GRANT, EnrolmentRequest, Grant
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.training.dpsgd import DPSGD
from fedprivacy.training.optimizers import LARGEST_LEARNING_RATE


def request_in(message: Message) -> EnrolmentRequest:
    """The request to enrol that a message brings; `MessageError` if it brings none."""
    return EnrolmentRequest.from_record(_config_record(message, ENROLMENT_REQUEST))


def grant_in(message: Message) -> Grant:
    """The grant that a message brings; `MessageError` if it brings none."""
    grant = Grant.from_record(_config_record(message, GRANT))
    reach("client.asked")
    return grant


def prepared(client: LocalClient, grant: Grant, message: Message) -> tuple[DPSGD, GradientEngine]:
    """The training that a grant allows, and what computes its gradients, at the model that the server sends.

    Raises:
        MessageError: the message asks for what cannot be done.
    """
    training = DPSGD(
        mechanism=grant.mechanism,
        expected_batch_size=grant.expected_batch_size,
        optimizer=grant.local_optimizer,
        proximal_mu=_proximal_mu(message),
        adaptive=grant.adaptive,
    )
    keep_freed_memory()
    engine = client.engine(grant.clipping)
    engine.model.load_state_dict(_global_parameters(message, engine.model), strict=False)
    engine.prepare(client.shard.inputs[:0], client.shard.targets[:0])
    return training, engine


def _global_parameters(message: Message, model: nn.Module) -> dict[str, Tensor]:
    """The model that the server sends: the task's own parameters, each of its own type and shape, finite.

    Raises:
        MessageError: it is something else.
    """
    own = trainable_parameters(model)
    forms = {name: Form(tuple(p.shape), torch.empty(0, dtype=p.dtype).numpy().dtype) for name, p in own.items()}
    try:
        received = checked_arrays(message.content.get(ARRAYS), forms)
    except ArraysError as error:
        raise MessageError(f"The global model is not this task's ({error}); use one task on both sides.") from error
    return {name: torch.from_numpy(values) for name, values in received.items()}


def _proximal_mu(message: Message) -> float:
    """What Flower's FedProx puts into its messages; 0 from every other strategy.

    Raises:
        MessageError: it is no number, or none that can be multiplied with.
    """
    value = _config_record(message, "config").get("proximal-mu", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= LARGEST_LEARNING_RATE:
        raise MessageError(f"proximal-mu must be a number from 0 to {LARGEST_LEARNING_RATE:g}.")
    return float(value)


def _config_record(message: Message, name: str) -> ConfigRecord:
    record = message.content.get(name) if message.has_content() else None
    return record if isinstance(record, ConfigRecord) else ConfigRecord()
