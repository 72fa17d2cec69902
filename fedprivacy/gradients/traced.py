"""A traced program: a feed-forward net as a chain of operations, run forward and backward without autograd.

For small models, building and walking autograd's graph takes longer than the arithmetic. A model that torch.fx traces
to a chain of layers needs no graph: each operation knows its own gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedprivacy.gradients.losses import Loss, gradient_of
from fedprivacy.gradients.operations import Activation, Operation, operation_for
from fedprivacy.gradients.parts import WHOLE, filled
from fedprivacy.gradients.tape import Gathered, Part, Sized


class NotAChainError(ValueError):
    """The model is more than a chain of layers that the program knows."""


@dataclass(frozen=True, slots=True)
class ChainStep:
    """A layer of the chain, its trained parameters by name, and whether a gradient goes on to the layers before it."""

    operation: Operation
    parts: dict[str, Part]
    goes_on: bool


class Program:
    """Method that computes per-record gradients of a feed-forward net."""

    name = "program"

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """Trace the model.

        Raises:
            NotAChainError: it is not a chain of known layers.
            Exception: any error of torch.fx on a model that it cannot trace.
        """
        indices = {p: Part(i) for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
        self._steps = steps_of(model, indices)
        self._uses = Counter(part for step in self._steps for part in step.parts.values())
        self._gradient_of = gradient_of(loss)
        self.held_bytes = 0
        if set(self._uses) != set(indices.values()):
            raise NotAChainError("a parameter belongs to no layer of the chain")

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Sized]:
        with torch.no_grad():
            outputs, kept = self._forward(inputs)
            rows = max(len(outputs), WHOLE)  # avoid leftover elements in small outputs
            gradient = self._gradient_of(filled(outputs, rows), filled(targets, rows))[: len(outputs)]
            return self._backward(kept, gradient, kept_bytes)

    def _forward(self, inputs: Tensor) -> tuple[Tensor, list[object]]:
        values, kept, records, held = inputs, [], inputs.shape[0], 0
        for step in self._steps:
            values, needed = step.operation.forward(values)
            kept.append(needed)
            held += 2 * values.nbytes
            if values.shape[0] != records:
                raise NotAChainError("a layer's first axis does not count the records")
        self.held_bytes = held
        return values, kept

    def _backward(self, kept: list[object], gradient: Tensor, kept_bytes: int) -> list[Sized]:
        gathered = Gathered(kept_bytes, self._uses)
        for step in reversed(self._steps):
            needed = kept.pop()
            for name, part in step.parts.items():
                gathered.add(part, step.operation.piece(name, needed, gradient, kept_bytes))
            if not step.goes_on:
                break
            gradient = step.operation.backward(needed, gradient)
        return gathered.finish()


def steps_of(model: nn.Module, indices: Mapping[nn.Parameter, Part]) -> list[ChainStep]:
    """Return the steps of a chain of layers; no gradient goes back beyond the first with a trained parameter.

    Raises:
        NotAChainError: it is not a chain of known layers.
        Exception: any error of torch.fx on a model that it cannot trace.
    """
    steps: list[ChainStep] = []
    reached = False
    for layer in _chain(model):
        operation = operation_for(layer)
        if operation is None:
            raise NotAChainError(f"{type(layer).__name__} has no operation")
        parts = {name: indices[p] for name, p in layer.named_parameters() if p.requires_grad}
        steps.append(ChainStep(operation, parts, reached))
        reached = reached or bool(parts)
    for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
        if isinstance(step.operation, Activation):
            step.operation.over_inputs = before.operation.fresh
            step.operation.over_gradient = after.operation.fresh
    return steps


def _chain(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model in which every layer reads the one before, or raise a `NotAChainError`."""
    if operation_for(model) is not None:  # a layer is a chain of one
        return [model]
    *nodes, output = fx.Tracer().trace(model).nodes
    layers, last = [], nodes[0]
    for node in nodes[1:]:
        if node.all_input_nodes != [last]:
            raise NotAChainError(f"'{node}' reads something else than the layer before")
        layers.append(_layer(model, node))
        last = node
    if nodes[0].op != "placeholder" or output.args != (last,):
        raise NotAChainError("the model returns something else than its last layer's output")
    return layers


def _layer(model: nn.Module, node: fx.Node) -> nn.Module:
    """Return the layer of a node. Its first argument is the input; the rest are the layer's settings."""
    if node.op == "call_module":
        return model.get_submodule(str(node.target))
    make = _FUNCTIONS.get(node.target)
    if make is None:
        raise NotAChainError(f"'{node}' is not known as a layer")
    return make(*node.args[1:], **node.kwargs)


_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((torch.relu, functional.relu, "relu"), nn.ReLU),
    **dict.fromkeys((torch.tanh, functional.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((torch.sigmoid, functional.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((torch.flatten, "flatten"), nn.Flatten),
    functional.gelu: nn.GELU,
    functional.silu: nn.SiLU,
    functional.max_pool2d: nn.MaxPool2d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}
"""Functions and methods of tensors, each with the layer that computes the same from the same settings."""
