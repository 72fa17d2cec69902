"""Rules, one for each kind of layer: compute it as usual, and tell the tape how its gradient comes about.

A rule is chosen by the layer's exact type: a subclass may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from fedprivacy.gradients.pieces import Piece, Written
from fedprivacy.gradients.rules.convolution import convolution
from fedprivacy.gradients.rules.linear import attention, embedding, linear
from fedprivacy.gradients.rules.normalization import group_norm, layer_norm, rms_norm
from fedprivacy.gradients.rules.pooling import max_pool
from fedprivacy.gradients.rules.recurrent import recurrent, recurrent_cell
from fedprivacy.gradients.tape import Tape

Rule = Callable[..., Any]
"""(tape, the layer's name, the layer, the arguments of its `forward`) -> what its `forward` returns."""

_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.MultiheadAttention: attention,
    nn.Embedding: embedding,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    nn.MaxPool2d: max_pool,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), group_norm),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), recurrent),
    **dict.fromkeys((nn.RNNCell, nn.LSTMCell, nn.GRUCell), recurrent_cell),
}

PerRecordGradients = Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]
"""(layer, inputs [batch, ...], output gradients [batch, ...]) -> each own parameter's gradients [batch, *parameter]."""


def rule_for(layer: nn.Module) -> Rule | None:
    return _RULES.get(type(layer))


def register_rule(kind: type[nn.Module], gradients: PerRecordGradients) -> None:
    """Teach the engine a layer of your own.

    >>> class Gate(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.ones(8))
    ...
    ...     def forward(self, x):  # [batch, 8]
    ...         return x * self.weight
    >>> register_rule(Gate, lambda layer, inputs, gradients: {"weight": inputs * gradients})

    Args:
        kind: the layer's exact class; its `forward` takes and returns one tensor whose first axis counts the records.
        gradients: function that computes the per-record gradients of the layer's own parameters from its inputs and
            the gradients of its outputs: a row for each record, frozen parameters included. Layers inside the layer
            are not covered: their parameters need rules of their own. The engine checks the result against autograd
            before it is used on records, and takes another method if they differ.
    """

    def rule(tape: Tape, name: str, layer: nn.Module, inputs: Tensor) -> Tensor:
        own = dict(layer.named_parameters(recurse=False))
        return _by_gradients(tape, name, layer, inputs, parameters=own, gradients=partial(gradients, layer))

    _RULES[kind] = rule


def opaque(tape: Tape, name: str, module: nn.Module, inputs: Tensor) -> Tensor:
    """Handle a module without a rule that takes and returns one tensor: recompute it record by record, vectorised.

    It is computed in its parameters' own precision, because `torch.func` knows no autocast.
    """
    trained = {own: p for own, p in module.named_parameters() if tape.part(p) is not None}

    def gradients_of(record: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        def compute(parameters: dict[str, Tensor]) -> Tensor:
            computed: Tensor = functional_call(module, parameters, (record.unsqueeze(0),))
            return computed

        pull_back = vjp(compute, {own: p.detach() for own, p in trained.items()})[1]
        (written,) = pull_back(gradient.unsqueeze(0))
        return dict(written)

    full = inputs.float() if inputs.dtype == torch.bfloat16 else inputs
    with torch.autocast(inputs.device.type, enabled=False):
        return _by_gradients(
            tape, name, module, full, parameters=trained, gradients=vmap(gradients_of, randomness="error")
        )


def _by_gradients(
    tape: Tape,
    name: str,
    layer: nn.Module,
    inputs: Tensor,
    *,
    parameters: dict[str, nn.Parameter],
    gradients: Callable[[Tensor, Tensor], dict[str, Tensor]],
) -> Tensor:
    """Handle a layer whose parameters' gradients are written out from its inputs and the gradients of its outputs."""
    output: Tensor = type(layer).forward(layer, inputs)
    tape.require_records_first(name, inputs)

    def pieces_of(gradient: Tensor) -> list[Piece]:
        written = gradients(inputs.detach(), gradient)
        return [Written(written[own]) for own in parameters]

    tape.watch(name, inputs, output, [tape.part(p) for p in parameters.values()], pieces_of)
    return output
