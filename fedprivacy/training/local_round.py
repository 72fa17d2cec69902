"""Vectors that clients keep from round to round, and how an algorithm gets them at the beginning of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedprivacy.gradients import flat_parameters, trainable_parameters
from fedprivacy.training.algorithms import Algorithm, LocalRound
from fedprivacy.training.descent import Descent


@dataclass(frozen=True, slots=True)
class Kept:
    """State with which a client begins a round, besides the global model.

    Attributes:
        own: vector that it kept of its last round, shape [d]; None: nothing yet.
        control: vector that the server sends besides the model, shape [d]; None: nothing.
    """

    own: Tensor | None = None
    control: Tensor | None = None


NOTHING_KEPT = Kept()

CONTROL = "control"
"""Name of a server's control in a message, as a record and as an array."""


def local_round(algorithm: Algorithm, model: nn.Module, before: Kept, descent: Descent) -> LocalRound:
    """Prepare one client's round, at the model's present parameters.

    Raises:
        ValueError: the model has none of the layers that each client keeps under this algorithm.
    """
    shared = flat_parameters(model)
    control = None if before.control is None else before.control.to(shared.device)
    own = algorithm.first(shared, control) if before.own is None else before.own.to(shared.device)
    return descent.round(shared, own, control, personal_mask(algorithm, model))


def stacked_round(
    algorithm: Algorithm, model: nn.Module, own: Sequence[Tensor | None], control: Tensor | None, descent: Descent
) -> LocalRound:
    """Prepare the round of clients that are stacked, at the model's present parameters: a row for each.

    Args:
        algorithm, model, descent: those of all clients.
        own: vector that each client kept of its last round, shape [d]; None: nothing yet.
        control: vector that the server sends besides the model, shape [d]; None: nothing.

    Raises:
        ValueError: see `local_round`.
    """
    start = flat_parameters(model)
    shared = kept = start.expand(len(own), -1)
    if algorithm.keeps:
        first = algorithm.first(start, control)
        kept = torch.stack([first if one is None else one for one in own])
    return descent.round(shared, kept, control, personal_mask(algorithm, model))


def personal_mask(algorithm: Algorithm, model: nn.Module) -> Tensor | None:
    """Make the mask of the trained parameters in personal layers, bool, shape [d]; None: the algorithm has none.

    Raises:
        ValueError: the model has no such layers.
    """
    names = algorithm.layers(model)
    if not names:
        return None
    parameters = trainable_parameters(model).items()
    return torch.cat([torch.full((p.numel(),), name in names, device=p.device) for name, p in parameters])
