"""A traced program: a feed-forward net as a chain of operations, run forward and backward without autograd.

For small models, building and walking autograd's graph takes longer than the arithmetic. A model that torch.fx traces
to a chain of layers needs no graph: each operation computes a layer, and knows its own gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedprivacy.gradients.layout import WHOLE, filled
from fedprivacy.gradients.models import Loss, LossGradient
from fedprivacy.gradients.pieces import Part, Piece, Placed
from fedprivacy.gradients.products import linear, on_gpu, times
from fedprivacy.gradients.rules.convolution import (
    Convolution,
    channels_last,
    convolution_bias,
    convolution_weight,
    faster_with_channels_last,
)
from fedprivacy.gradients.rules.linear import linear_bias, linear_weight
from fedprivacy.gradients.rules.normalization import over_trailing
from fedprivacy.gradients.rules.pooling import shifted_max, shifted_max_gradient, shifts
from fedprivacy.gradients.tape import Gathered

_aten = torch.ops.aten

_NUMPY_IS_FASTER = 4
"""Maximum number of threads with which numpy's kernel is faster."""


class Operation(ABC):
    """One step with one input.

    Attributes:
        fresh: whether both passes return memory of their own, which the operation does not read again.
    """

    fresh = True

    @abstractmethod
    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return the output, and the values to keep for the gradients."""

    @abstractmethod
    def backward(self, kept: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs, given the values that `forward` kept and the gradient of the output."""

    def piece(self, parameter: str, kept: Any, gradient: Tensor, kept_bytes: int) -> Piece:
        """Return the piece of the layer's weight or bias, which may keep `kept_bytes` bytes; arguments as for
        `backward`.
        """
        raise NotImplementedError


class Linear(Operation):
    """`nn.Linear`."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return linear(inputs, self.layer.weight, self.layer.bias), inputs

    def backward(self, kept: Tensor, gradient: Tensor) -> Tensor:
        return times(gradient, self.layer.weight)

    def piece(self, parameter: str, kept: Tensor, gradient: Tensor, kept_bytes: int) -> Piece:
        return linear_bias(gradient) if parameter == "bias" else linear_weight(kept, gradient, kept_bytes)


class Convolve(Operation):
    """`nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d`, padded with zeros on both sides alike."""

    def __init__(self, layer: Convolution) -> None:
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise ValueError("padding that the convolution does not do itself")
        self.layer, self.padding = layer, layer.padding
        self._channels_last = faster_with_channels_last(layer)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self._channels_last:
            inputs = channels_last(inputs)
        output: Tensor = self.layer(inputs)
        return output, inputs

    def backward(self, kept: Tensor, gradient: Tensor) -> Tensor:
        layer = self.layer
        numbers = (layer.stride, self.padding, layer.dilation, False, [0] * len(layer.stride), layer.groups)
        arguments = (gradient, kept, layer.weight, None, *numbers, [True, False, False])
        result: Tensor = _aten.convolution_backward(*arguments)[0]
        return result

    def piece(self, parameter: str, kept: Tensor, gradient: Tensor, kept_bytes: int) -> Piece:
        if parameter == "bias":
            return convolution_bias(gradient)
        return convolution_weight((self.layer, self.padding), kept, gradient, kept_bytes)


class Activation(Operation):
    """An activation whose gradient follows from its output.

    It overwrites the inputs and the gradient of the output if nothing else reads them: fresh memory is slower than the
    arithmetic.
    """

    fresh = False

    def __init__(self, function: Callable[..., Tensor], gradient: Callable[..., Tensor]) -> None:
        """Take torch's (inputs, out=) for the function, and (gradient, output, grad_input=) for its gradient."""
        self._function, self._gradient = function, gradient
        self.over_inputs = self.over_gradient = False

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = self._function(inputs, out=inputs if self.over_inputs else torch.empty_like(inputs))
        return output, output

    def backward(self, kept: Tensor, gradient: Tensor) -> Tensor:
        return self._gradient(gradient, kept, grad_input=gradient if self.over_gradient else torch.empty_like(gradient))


def _tanh(inputs: Tensor, *, out: Tensor) -> Tensor:
    """Compute the hyperbolic tangent: on a CPU by numpy's kernel, eight times as fast as torch's and accurate to 2e-7.

    Numpy uses one thread; torch's kernel is faster with many.
    """
    if on_gpu(inputs) or inputs.dtype != torch.float32 or torch.get_num_threads() > _NUMPY_IS_FASTER:
        return torch.tanh(inputs, out=out)
    np.tanh(inputs.detach().numpy(), out=out.numpy())
    return out


class Flatten(Operation):
    """`nn.Flatten`."""

    fresh = False

    def __init__(self, start: int, stop: int) -> None:
        self._axes = (start, stop)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs.flatten(*self._axes), inputs

    def backward(self, kept: Tensor, gradient: Tensor) -> Tensor:
        gradient = gradient.view(kept.shape)
        return gradient if kept.is_contiguous() else torch.empty_like(kept).copy_(gradient)


class LayerNorm(Operation):
    """`nn.LayerNorm`."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        self._layer, self._shape = layer, list(layer.normalized_shape)

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        layer = self._layer
        output, mean, rstd = torch.native_layer_norm(inputs, self._shape, layer.weight, layer.bias, layer.eps)
        return output, (inputs, mean, rstd)

    def backward(self, kept: tuple[Tensor, ...], gradient: Tensor) -> Tensor:
        inputs, mean, rstd = kept
        parameters = self._layer.weight, self._layer.bias
        arguments = (gradient, inputs, self._shape, mean, rstd, *parameters, [True, False, False])
        result: Tensor = _aten.native_layer_norm_backward(*arguments)[0]
        return result

    def piece(self, parameter: str, kept: tuple[Tensor, ...], gradient: Tensor, kept_bytes: int) -> Piece:
        inputs, mean, rstd = kept
        by_each = gradient if parameter == "bias" else ((inputs - mean) * rstd).mul_(gradient)
        return over_trailing(by_each, len(self._shape))


class _ByAutograd(Operation):
    """Any layer without parameters: autograd, for this layer alone."""

    fresh = False

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        with torch.enable_grad():
            leaf = inputs.detach().requires_grad_()
            output = self._layer(leaf)
        return output.detach(), (leaf, output)

    def backward(self, kept: Any, gradient: Tensor) -> Tensor:
        leaf, output = kept
        with torch.enable_grad():  # a scalar: autograd's checks of other outputs import sympy, for half a second
            inner = (output * gradient).sum()
        result: Tensor = torch.autograd.grad(inner, leaf)[0]
        return result


class MaxPool(Operation):
    """`nn.MaxPool2d`: by shifted maxima on a CPU, where they cover it."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self._layer = layer
        self._settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        windows, kept = shifts(self._layer, inputs), []
        if windows is None:
            output, places = _aten.max_pool2d_with_indices(inputs, *self._settings)
            return output, (inputs, places)
        for window in windows:
            kept.append((inputs, window))
            inputs = shifted_max(inputs, *window)
        return inputs, kept

    def backward(self, kept: Any, gradient: Tensor) -> Tensor:
        if isinstance(kept, tuple):
            inputs, places = kept
            settings = [[each] * 2 if isinstance(each, int) else each for each in self._settings[:4]]
            arguments = (gradient, inputs, *settings, self._layer.ceil_mode, places)
            result: Tensor = _aten.max_pool2d_with_indices_backward(*arguments)
            return result
        for inputs, window in reversed(kept):
            gradient = shifted_max_gradient(inputs, gradient, *window)
        return gradient


def operation_for(layer: nn.Module) -> Operation | None:
    """Return the operation that computes a layer, or None if only autograd can."""
    make = _OPERATIONS.get(type(layer))
    if make is not None:
        return make(layer)
    own = [*layer.parameters(), *layer.buffers()]
    return None if own or getattr(layer, "inplace", False) else _ByAutograd(layer)


_OPERATIONS: dict[type[nn.Module], Callable[[Any], Operation]] = {
    nn.Linear: Linear,
    nn.Conv1d: Convolve,
    nn.Conv2d: Convolve,
    nn.Conv3d: Convolve,
    nn.LayerNorm: LayerNorm,
    nn.MaxPool2d: MaxPool,
    nn.ReLU: lambda _: Activation(
        partial(torch.clamp_min, min=0), partial(_aten.threshold_backward.grad_input, threshold=0)
    ),
    nn.Tanh: lambda _: Activation(_tanh, _aten.tanh_backward.grad_input),
    nn.Sigmoid: lambda _: Activation(torch.sigmoid, _aten.sigmoid_backward.grad_input),
    nn.Flatten: lambda layer: Flatten(layer.start_dim, layer.end_dim),
}


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
        self._gradient_of = LossGradient(loss)
        self.held_bytes = 0
        if set(self._uses) != set(indices.values()):
            raise NotAChainError("a parameter belongs to no layer of the chain")

    def pieces(self, inputs: Tensor, targets: Tensor, kept_bytes: int) -> list[Placed]:
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

    def _backward(self, kept: list[object], gradient: Tensor, kept_bytes: int) -> list[Placed]:
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
