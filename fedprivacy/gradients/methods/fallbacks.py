"""The exact fallbacks: `vmap(grad)` for modules without a rule, then one backward pass for each record."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedprivacy.gradients.losses import Loss, checked_losses
from fedprivacy.gradients.parameters import trainable_parameters
from fedprivacy.gradients.pieces import Written
from fedprivacy.gradients.products import AlikeProducts
from fedprivacy.gradients.tape import Part, Sized


class _Fallback:
    """What writes every record's gradient out.

    Attributes:
        held_bytes: unknown, beside the written gradients.
    """

    held_bytes = 0

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._model, self._loss = model, loss


class Vectorised(_Fallback):
    """Per-record gradients of everything that `torch.func` can transform.

    Attributes:
        name: for people.
    """

    name = "vmap"

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Every trained parameter's piece for one batch; see `BookKeeping.pieces`."""

        def record_loss(parameters: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self._model, parameters, (record.unsqueeze(0),))
            return checked_losses(self._loss(outputs, target.unsqueeze(0)), 1)[0]

        gradients = vmap(grad(record_loss), in_dims=(None, 0, 0), randomness="error")
        with AlikeProducts():
            written = gradients(trainable_parameters(self._model), inputs, targets)
        return _written(written.values())


class Loop(_Fallback):
    """One backward pass for each record: the last resort, and the oracle of the self-check.

    Attributes:
        name: for people.
    """

    name = "loop"

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        """Every trained parameter's piece for one batch; see `BookKeeping.pieces`."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        # Each in memory of its own: kernels may treat what comes before an aligned address apart.
        records = ((inputs[i : i + 1].clone(), targets[i : i + 1].clone()) for i in range(len(inputs)))
        rows = [self._gradients(parameters, *record) for record in records]
        return _written([torch.stack(column) for column in zip(*rows, strict=True)])

    def _gradients(self, parameters: list[nn.Parameter], record: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            (loss,) = checked_losses(self._loss(self._model(record), target), 1)
            return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def _written(gradients: Iterable[Tensor]) -> list[Sized]:
    pieces = [Written(written) for written in gradients]
    return [Sized(Part(index), piece, piece.norms()) for index, piece in enumerate(pieces)]
