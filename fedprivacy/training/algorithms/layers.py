"""Layers of a model that are a client's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def head_of(model: nn.Module) -> frozenset[str]:
    """Return the trained parameters of the last layer that has any.

    Raises:
        ValueError: no other layer has any, so that nothing would be shared.
    """
    layers = _trained_by_layer(model)
    if len(layers) < 2:
        raise ValueError(
            "the model has one layer with trained parameters, which would be each client's own, and nothing shared; "
            "choose algorithm local, or a deeper model."
        )
    return layers[-1]


def normalisations_of(model: nn.Module) -> frozenset[str]:
    """Return the trained parameters of normalisation layers.

    Raises:
        ValueError: there are none.
    """
    from torch.nn import GroupNorm, LayerNorm, RMSNorm
    from torch.nn.modules.instancenorm import _InstanceNorm

    kinds = GroupNorm, LayerNorm, RMSNorm, _InstanceNorm
    named = {name for name, layer in model.named_modules() if isinstance(layer, kinds)}
    found = frozenset().union(*(layer for layer in _trained_by_layer(model) if _owner(next(iter(layer))) in named))
    if not found:
        raise ValueError("the model has no normalisation layer with trained parameters; choose another algorithm.")
    return found


def _trained_by_layer(model: nn.Module) -> list[frozenset[str]]:
    """List the names of each layer's own trained parameters, in the order of the model; layers without any are left
    out.
    """
    layers: dict[str, set[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layers.setdefault(_owner(name), set()).add(name)
    return [frozenset(names) for names in layers.values()]


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]
