"""Which models have a per-record gradient at all."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class UnsupportedModelError(ValueError):
    """A model whose records cannot be told apart, with the layer's name and the remedy."""


def check_model(model: nn.Module) -> None:
    """Refuse a model whose layers mix the records of a batch or that has nothing to train.

    Raises:
        UnsupportedModelError: names every offending layer and what to use instead.
    """
    problems = [
        f"layer '{name}' is a {type(layer).__name__}, whose statistics mix the records of a batch: use GroupNorm"
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
    ]
    problems += [
        f"layer '{name}' is an {type(layer).__name__} that tracks running statistics: set track_running_stats=False"
        for name, layer in model.named_modules()
        if not isinstance(layer, _BatchNorm) and getattr(layer, "track_running_stats", False)
    ]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        problems.append("no parameter has requires_grad=True: there is nothing to train")
    if problems:
        raise UnsupportedModelError("The model cannot be trained with DP-SGD: " + "; ".join(problems) + ".")
