"""Problems that a model's layers show without being run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fedprivacy.gradients.checks.problems import Kind, Problem
from fedprivacy.gradients.checks.repair import has_replacement

_MASKS = "whose masks follow a record's place in the batch"


def structural_problems(model: nn.Module) -> list[Problem]:
    """Every problem that can be read off the layers and their settings."""
    problems = [problem for name, layer in model.named_modules() for check in _CHECKS for problem in check(name, layer)]
    problems += _unregistered(model)
    if not any(p.requires_grad for p in model.parameters()):
        problems.append(
            Problem("", Kind.NOTHING_TO_TRAIN, "has no trainable parameter: there is nothing to train", "unfreeze some")
        )
    return problems


def _statistics(name: str, layer: nn.Module) -> Iterator[Problem]:
    if isinstance(layer, _BatchNorm):
        fixable = has_replacement(layer)
        alone = isinstance(layer, nn.BatchNorm1d) and layer.num_features == 1
        remedy = "leave it out: a single value has no spread" if alone else "use GroupNorm"
        what = f"is {_a(layer)}, whose statistics mix the records of a batch"
        yield Problem(name, Kind.BATCH_STATISTICS, what, remedy, fixable)
    elif getattr(layer, "track_running_stats", False):
        what = f"is {_a(layer)} that keeps running statistics of the records"
        own = isinstance(layer, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
        yield Problem(name, Kind.RUNNING_STATISTICS, what, "set track_running_stats=False", own)


def _randomness(name: str, layer: nn.Module) -> Iterator[Problem]:
    if isinstance(layer, _DropoutNd) and layer.p > 0:
        what = f"is {_a(layer)}, {_MASKS}"
        yield Problem(name, Kind.RANDOM, what, "leave it out, or set p=0", fixable=True)
    elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0 and _drops(layer):
        yield Problem(name, Kind.RANDOM, f"has dropout={layer.dropout}, {_MASKS}", "set dropout=0", fixable=True)
    elif isinstance(layer, nn.RReLU) and layer.lower != layer.upper:
        yield Problem(name, Kind.RANDOM, "is an RReLU, which draws its slopes", "use LeakyReLU", fixable=True)
    elif isinstance(layer, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d) and layer._random_samples is None:
        what = f"is {_a(layer)}, which draws its regions"
        yield Problem(name, Kind.RANDOM, what, "use MaxPool2d or MaxPool3d")


def _drops(layer: nn.MultiheadAttention | nn.RNNBase) -> bool:
    """Recurrent layers drop values between their levels only."""
    return isinstance(layer, nn.MultiheadAttention) or layer.num_layers > 1


def _embeddings(name: str, layer: nn.Module) -> Iterator[Problem]:
    if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    if layer.max_norm is not None:
        what = f"has max_norm={layer.max_norm:g}, which rewrites the rows that a batch reads"
        yield Problem(name, Kind.EMBEDDING, what, "leave max_norm out", fixable=True)
    if layer.scale_grad_by_freq:
        what = "has scale_grad_by_freq=True, which counts the ids of the whole batch"
        yield Problem(name, Kind.EMBEDDING, what, "leave scale_grad_by_freq out", fixable=True)
    if layer.sparse:
        what = "has sparse=True, but the noise reaches every row: its gradients are never sparse"
        yield Problem(name, Kind.EMBEDDING, what, "leave sparse out", fixable=True)


def _rewritten(name: str, layer: nn.Module) -> Iterator[Problem]:
    if isinstance(layer, _SpectralNorm):
        yield _rewrites(name.rpartition(".parametrizations.")[0], "spectral_norm", "remove it: clipping bounds steps")
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            yield _rewrites(name, "spectral_norm", "remove it: clipping bounds steps")
        elif isinstance(hook, WeightNorm):
            yield _rewrites(name, "weight_norm", "use torch.nn.utils.parametrizations.weight_norm")
        elif isinstance(hook, BasePruningMethod):
            yield _rewrites(name, "pruning", "make it permanent with torch.nn.utils.prune.remove")


def _rewrites(name: str, what: str, remedy: str) -> Problem:
    return Problem(name, Kind.REWRITTEN, f"is under {what}, which rewrites the layer in every forward pass", remedy)


def _numbers(name: str, layer: nn.Module) -> Iterator[Problem]:
    own = list(layer.parameters(recurse=False))
    if any(is_lazy(p) for p in own):
        remedy = "give its sizes, or have model() run it once on zeros"
        yield Problem(name, Kind.UNINITIALISED, "has no parameters yet: they take their shape from a batch", remedy)
    for dtype in sorted({p.dtype for p in own if p.requires_grad} - {torch.float32, torch.float64}, key=str):
        if dtype.is_complex:
            what, remedy = f"has parameters in {dtype}", "keep real and imaginary parts as two real parameters"
            yield Problem(name, Kind.COMPLEX, what, remedy)
        else:
            what = f"has parameters in {dtype}, where clipping is not exact"
            yield Problem(name, Kind.PRECISION, what, "train in float32", fixable=True)


def _wrappers(name: str, layer: nn.Module) -> Iterator[Problem]:
    if isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel):
        what = f"is {_a(layer)}, which computes batches behind the engine's back"
        yield Problem(name, Kind.WRAPPED, what, "leave the wrapper out: use its .module")
    elif isinstance(layer, torch.jit.ScriptModule) or "_orig_mod" in layer._modules:
        yield Problem(
            name, Kind.WRAPPED, "is compiled, which hides its layers", "leave torch.compile and torch.jit out"
        )


_CHECKS = (_statistics, _randomness, _embeddings, _rewritten, _numbers, _wrappers)


def _unregistered(model: nn.Module) -> Iterator[Problem]:
    """Parameters that a layer holds where `parameters()` does not look."""
    known = set(model.parameters())
    for name, layer in model.named_modules():
        for key, value in vars(layer).items():
            if any(p not in known for p in _parameters_in(value)):
                what = f"holds parameters in '{key}', where they are neither trained nor sent"
                yield Problem(name, Kind.UNREGISTERED, what, "use nn.ModuleList, nn.ModuleDict or nn.Parameter")


def _parameters_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield from [value] if value.requires_grad and value.is_leaf else []
    elif isinstance(value, nn.Module):
        yield from (p for p in value.parameters() if p.requires_grad)
    elif isinstance(value, list | tuple | dict):
        members: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for member in members:
            yield from _parameters_in(member)


def _a(layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"
