"""A model that DP-SGD can train, made from one that it cannot."""

from __future__ import annotations

import copy

import torch
from torch import nn

_GROUPS = (32, 16, 8, 4, 2)
_LEAST_CHANNELS = 4
"""Channels in a group. With a group of two, a map of one pixel keeps nothing but the sign of a difference."""

_HALF = {torch.float16, torch.bfloat16}


def made_private(model: nn.Module) -> nn.Module:
    """A copy of `model` in which what mixes the records of a batch, or draws random numbers, is replaced.

    BatchNorm becomes GroupNorm with the same scale and shift, dropout is set to 0, running statistics are left out,
    RReLU becomes LeakyReLU, `nn.Embedding` loses `max_norm`, `scale_grad_by_freq` and `sparse`, half precision becomes
    float32. Layers and parameters keep their names. What BatchNorm has learned of its data is gone: a pretrained model
    needs training anew.

    `fedprivacy doctor` names what is left to do.

    >>> model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16))
    >>> made_private(model)[1].num_groups
    4
    """
    fixed = copy.deepcopy(model)
    if any(p.dtype in _HALF for p in fixed.parameters()):
        fixed.float()
    for layer in fixed.modules():
        _set_right(layer)
    replaced = {layer: _replacement(layer) for layer in fixed.modules() if has_replacement(layer)}
    for parent in list(fixed.modules()):
        for name, child in parent._modules.items():
            if child in replaced:
                parent.register_module(name, replaced[child])
    return replaced.get(fixed, fixed)


def has_replacement(layer: nn.Module) -> bool:
    """Whether another layer does what this one does, for each record alone."""
    if type(layer) is nn.BatchNorm1d:
        return layer.num_features > 1
    return type(layer) in {nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.RReLU}


def _replacement(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.RReLU):
        return nn.LeakyReLU((layer.lower + layer.upper) / 2, layer.inplace)
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)  # the other types of `has_replacement`
    groups = 1 if isinstance(layer, nn.BatchNorm1d) else _groups(layer.num_features)
    norm = nn.GroupNorm(groups, layer.num_features, layer.eps, affine=False)
    norm.affine, norm.weight, norm.bias = layer.affine, layer.weight, layer.bias
    return norm.train(layer.training)


def _groups(channels: int) -> int:
    """As many groups as Wu and He (2018) use, 32, or the next power of two that leaves each enough channels.

    Features without a map (BatchNorm1d) make one group instead, as in LayerNorm: neighbours among them mean nothing.
    """
    return next((g for g in _GROUPS if channels % g == 0 and channels // g >= _LEAST_CHANNELS), 1)


def _set_right(layer: nn.Module) -> None:
    """Change settings in place."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        layer.p = 0.0
    elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
        layer.dropout = 0.0
    elif isinstance(layer, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        layer.max_norm, layer.scale_grad_by_freq, layer.sparse = None, False, False
