"""Problems that a model's layers show without being run, and a copy of a model in which they are fixed.

A problem has the layer's name and the remedy. For problems that show only in a run, probes watch a model: during a
forward pass every layer has hooks, afterwards the model is as before, and its other attributes are compared with those
before.
"""

from __future__ import annotations

import copy
import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

State = dict[tuple[str, str], list[tuple[object, int]]]
"""Objects by layer and attribute, each with its version."""

_TORCH_S_OWN = frozenset(vars(nn.Module())) - {"training"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer in a forward pass: number of calls before it, and copies of its inputs and outputs."""

    layer: str
    order: int
    inputs: list[Tensor]
    outputs: list[Tensor]


def calls(model: nn.Module, run: Callable[[], object]) -> list[Call]:
    """List every call of a layer during `run`, in the order of return: inner layers before outer ones."""
    returned, order = [], count()

    def leave(layer: str, entered: tuple[int, list[Tensor]], outputs: object) -> None:
        returned.append(Call(layer, *entered, _copies(outputs)))

    with _watching_layers(model, lambda inputs: (next(order), _copies(inputs)), leave):
        run()
    return returned


def first_to_change(model: nn.Module, run: Callable[[], object], observed: Callable[[], object]) -> str:
    """Find the innermost layer during whose forward pass in `run` the observed value first changes; "" if none does."""
    changed = []

    def leave(layer: str, before: object, _: object) -> None:
        if observed() != before:
            changed.append(layer)

    with _watching_layers(model, lambda _: observed(), leave):
        run()
    return changed[0] if changed else ""


def overwritten_layers(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """List the layers whose input is changed in place, in `run`, after they have returned."""
    read: list[tuple[str, Tensor, int]] = []

    def leave(layer: str, inputs: object, _: object) -> None:
        read.extend((layer, tensor, tensor._version) for tensor in _tensors_in(inputs))

    with _watching_layers(model, lambda inputs: inputs, leave):
        run()
    return list(dict.fromkeys(layer for layer, tensor, version in read if tensor._version != version))


def failing_layer(model: nn.Module, run: Callable[[], object]) -> str | None:
    """Find the innermost layer that raises in `run`; None if nothing raises."""
    with _watching_layers(model) as within:
        try:
            run()
        except Exception:
            return within[-1][0] if within else ""
    return None


def state_of(model: nn.Module) -> State:
    """Collect everything that the layers hold: attributes, buffers, parameters, and the contents of collections."""
    return {
        (name, key): [(held, held._version if isinstance(held, Tensor) else 0) for held in _everything_in(value)]
        for name, layer in model.named_modules()
        for key, value in (_attributes(layer) | layer._buffers | layer._parameters).items()
    }


def changed_layers(before: State, after: State) -> list[str]:
    """List the layers that hold something else than before."""
    return sorted(
        {layer for (layer, key), held in after.items() if not _same(before.get((layer, key)), held)}
        | {layer for layer, key in before.keys() - after.keys()}
    )


@contextmanager
def _watching_layers(
    model: nn.Module,
    enter: Callable[[object], Any] = lambda inputs: None,
    leave: Callable[[str, Any, object], None] = lambda layer, entered, outputs: None,
) -> Iterator[list[tuple[str, Any]]]:
    """Call `leave` with a layer's name, the result of `enter` on its inputs, and its outputs; yield open calls."""
    within: list[tuple[str, Any]] = []

    def watch(name: str, layer: nn.Module) -> tuple[Any, Any]:
        def before(_: nn.Module, args: object, kwargs: object) -> None:
            within.append((name, enter((args, kwargs))))

        def after(_: nn.Module, args: object, outputs: object) -> None:
            leave(*within.pop(), outputs)

        return layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after)

    handles = [handle for name, layer in model.named_modules() for handle in watch(name, layer)]
    try:
        yield within
    finally:
        for handle in handles:
            handle.remove()


def _everything_in(value: object) -> Iterator[object]:
    """Yield the value and, if it is a collection, its contents."""
    yield value
    if isinstance(value, list | tuple | set | deque | dict):
        members: Iterable[object] = value.values() if isinstance(value, dict) else value
        for member in members:
            yield from _everything_in(member)


def _tensors_in(value: object) -> Iterator[Tensor]:
    return (member for member in _everything_in(value) if isinstance(member, Tensor))


def _copies(value: object) -> list[Tensor]:
    """Copy the tensors in a value, so that later changes in place do not affect them."""
    return [tensor.detach().clone() for tensor in _tensors_in(value)]


def _attributes(layer: nn.Module) -> dict[str, object]:
    """Return a layer's attributes; of torch's own layers only the public ones, because some rearrange the others."""
    own = not type(layer).__module__.startswith("torch.")
    return {k: v for k, v in vars(layer).items() if k not in _TORCH_S_OWN and (own or not k.startswith("_"))}


def _same(before: list[tuple[object, int]] | None, after: list[tuple[object, int]]) -> bool:
    if before is None or len(before) != len(after):
        return False
    return all(
        version == version_before
        and (value is value_before or (isinstance(value, int | float | str | bytes) and value == value_before))
        for (value_before, version_before), (value, version) in zip(before, after, strict=True)
    )


class Kind(enum.StrEnum):
    """The kind of a problem."""

    BATCH_STATISTICS = "batch-statistics"
    RUNNING_STATISTICS = "running-statistics"
    RANDOM = "random"
    PRECISION = "precision"
    COMPLEX = "complex"
    EMBEDDING = "embedding"
    REWRITTEN = "rewritten-weight"
    UNINITIALISED = "uninitialised"
    UNREGISTERED = "unregistered"
    WRAPPED = "wrapped"
    NOTHING_TO_TRAIN = "nothing-to-train"
    FROZEN_DIFFERS = "frozen-differs"
    FAILS = "fails"
    OUTPUT = "output"
    MIXES_RECORDS = "mixes-records"
    LOSS_SHAPE = "loss-shape"
    EDITS_BATCH = "edits-batch"
    IN_PLACE = "in-place"
    STATE = "state"
    CHANGES = "changes"
    NO_GRADIENT = "no-gradient"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that keeps DP-SGD from training a model soundly.

    Attributes:
        layer: the layer's name as in `named_modules`; "" is the model itself, None the loss.
        kind: the kind of the problem.
        what: the predicate of a sentence whose subject is the layer.
        remedy: the advised change.
        fixable: whether `made_private` fixes it.
        warning: whether it is unwise rather than unsound.
    """

    layer: str | None
    kind: Kind
    what: str
    remedy: str
    fixable: bool = False
    warning: bool = False


def group_problems(problems: Iterable[Problem]) -> list[tuple[list[str | None], Problem]]:
    """Group problems that differ only in the layer: (the layers, one of the problems)."""
    groups: dict[Problem, list[str | None]] = {}
    for problem in problems:
        groups.setdefault(replace(problem, layer=None), []).append(problem.layer)
    return [(layers, problem) for problem, layers in groups.items()]


def in_words(problems: Iterable[Problem]) -> str:
    """Describe all problems in one sentence: layer, problem, remedy."""
    return "; ".join(f"{_where(layers)} {p.what}: {p.remedy}" for layers, p in group_problems(problems))


def _where(layers: list[str | None]) -> str:
    names = {None: "the loss", "": "the model"}
    *others, last = [names.get(layer, f"layer '{layer}'") for layer in layers]
    return f"each of {', '.join(others)} and {last}" if others else last


_PATHS = {"StochasticDepth": "p", "DropPath": "drop_prob"}
"""Ends of the names of torchvision's, timm's and transformers' layers that drop whole branches, each with the attribute
that holds the probability.
"""

_GROUPS = (32, 16, 8, 4, 2)
_LEAST_CHANNELS = 4
"""Minimum number of channels in a group. With two, a one-pixel map would keep only the sign of a difference."""


def structural_problems(model: nn.Module) -> list[Problem]:
    """Find every problem that can be read off the layers and their settings."""
    problems = [problem for name, layer in model.named_modules() for check in _CHECKS for problem in check(name, layer)]
    problems += _unregistered_parameters(model)
    if not any(p.requires_grad for p in model.parameters()):
        what = "has no trainable parameter: there is nothing to train"
        problems.append(Problem("", Kind.NOTHING_TO_TRAIN, what, "unfreeze some"))
    return problems


def _statistics(name: str, layer: nn.Module) -> Iterator[Problem]:
    if isinstance(layer, _BatchNorm) and not _frozen(layer):
        alone = isinstance(layer, nn.BatchNorm1d) and layer.num_features == 1
        remedy = "leave it out: a single value has no spread" if alone else "use GroupNorm"
        remedy = f"return it in eval() if its statistics are pretrained, or {remedy}"
        what = f"is {_a(layer)}, whose statistics mix the records of a batch"
        yield Problem(name, Kind.BATCH_STATISTICS, what, remedy, _has_replacement(layer))
    elif getattr(layer, "track_running_stats", False) and layer.training:
        what, remedy = f"is {_a(layer)} that keeps running statistics of the records", "set track_running_stats=False"
        yield Problem(name, Kind.RUNNING_STATISTICS, what, remedy, isinstance(layer, _InstanceNorm))


def _frozen(layer: nn.Module) -> bool:
    """Return whether a normalisation reads its running statistics and never writes them: a map of each record alone."""
    known = getattr(layer, "running_mean", None) is not None and getattr(layer, "running_var", None) is not None
    return known and not layer.training


def _randomness(name: str, layer: nn.Module) -> Iterator[Problem]:
    problem, masks = partial(Problem, name, Kind.RANDOM), "whose masks follow a record's place in the batch"
    if isinstance(layer, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d) and layer._random_samples is None:
        yield problem(f"is {_a(layer)}, which draws its regions", "use MaxPool2d or MaxPool3d")
    elif not layer.training:
        return
    elif isinstance(layer, _DropoutNd) and layer.p > 0:
        yield problem(f"is {_a(layer)}, {masks}", "leave it out, or set p=0", fixable=True)
    elif (path := _path(layer)) and getattr(layer, path):
        yield problem(f"is {_a(layer)}, {masks}", f"set {path}=0", fixable=True)
    elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0 and _drops(layer):
        yield problem(f"has dropout={layer.dropout}, {masks}", "set dropout=0", fixable=True)
    elif isinstance(layer, nn.RReLU) and layer.lower != layer.upper:
        yield problem("is an RReLU, which draws its slopes", "use LeakyReLU", fixable=True)


def _path(layer: nn.Module) -> str | None:
    """Return the attribute that holds the probability with which a layer drops a branch; None: it is no such layer."""
    kind = type(layer).__name__
    return next((own for end, own in _PATHS.items() if kind.endswith(end) and hasattr(layer, own)), None)


def _drops(layer: nn.MultiheadAttention | nn.RNNBase) -> bool:
    """Return whether a layer applies its dropout: recurrent layers drop values only between their levels."""
    return isinstance(layer, nn.MultiheadAttention) or layer.num_layers > 1


def _embeddings(name: str, layer: nn.Module) -> Iterator[Problem]:
    if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    problem = partial(Problem, name, Kind.EMBEDDING, fixable=True)
    if layer.max_norm is not None:
        what = f"has max_norm={layer.max_norm:g}, which rewrites the rows that a batch reads"
        yield problem(what, "leave max_norm out")
    if layer.scale_grad_by_freq:
        what = "has scale_grad_by_freq=True, which counts the ids of the whole batch"
        yield problem(what, "leave scale_grad_by_freq out")
    if layer.sparse:
        what = "has sparse=True, but the noise reaches every row: its gradients are never sparse"
        yield problem(what, "leave sparse out")


_REWRITING: dict[type, tuple[str, str]] = {
    _SpectralNorm: ("spectral_norm", "remove it: clipping bounds steps"),
    SpectralNorm: ("spectral_norm", "remove it: clipping bounds steps"),
    WeightNorm: ("weight_norm", "use torch.nn.utils.parametrizations.weight_norm"),
    BasePruningMethod: ("pruning", "make it permanent with torch.nn.utils.prune.remove"),
}
"""Names of parametrizations (which are layers) and hooks, with the remedy for each."""


def _rewriting_problems(name: str, layer: nn.Module) -> Iterator[Problem]:
    for found in (layer, *layer._forward_pre_hooks.values()):
        for kind, (called, remedy) in _REWRITING.items():
            if isinstance(found, kind):
                where = name.rpartition(".parametrizations.")[0] if found is layer else name
                what = f"is under {called}, which rewrites the layer in every forward pass"
                yield Problem(where, Kind.REWRITTEN, what, remedy)


def _numbers(name: str, layer: nn.Module) -> Iterator[Problem]:
    own = list(layer.parameters(recurse=False))
    if any(is_lazy(p) for p in own):
        remedy = "give its sizes, or have model() run it once on zeros"
        yield Problem(name, Kind.UNINITIALISED, "has no parameters yet: they take their shape from a batch", remedy)
    for dtype in sorted({p.dtype for p in own if p.requires_grad} - {torch.float32, torch.float64}, key=str):
        what = f"has parameters in {dtype}"
        if dtype.is_complex:
            yield Problem(name, Kind.COMPLEX, what, "keep real and imaginary parts as two real parameters")
        else:
            yield Problem(
                name, Kind.PRECISION, f"{what}, where clipping is not exact", "train in float32", fixable=True
            )


def _wrappers(name: str, layer: nn.Module) -> Iterator[Problem]:
    problem = partial(Problem, name, Kind.WRAPPED)
    if isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel):
        what = f"is {_a(layer)}, which computes batches behind the engine's back"
        yield problem(what, "leave the wrapper out: use its .module")
    elif isinstance(layer, torch.jit.ScriptModule) or "_orig_mod" in layer._modules:
        yield problem("is compiled, which hides its layers", "leave torch.compile and torch.jit out")


_CHECKS = (_statistics, _randomness, _embeddings, _rewriting_problems, _numbers, _wrappers)


def _unregistered_parameters(model: nn.Module) -> Iterator[Problem]:
    """Find parameters that a layer holds where `parameters()` does not look."""
    known = set(model.parameters())
    for name, layer in model.named_modules():
        for key, value in vars(layer).items():
            if any(p not in known for p in _parameters_in(value)):
                what = f"holds parameters in '{key}', where they are neither trained nor sent"
                yield Problem(name, Kind.UNREGISTERED, what, "use nn.ModuleList, nn.ModuleDict or nn.Parameter")


def _parameters_in(value: object) -> Iterator[Tensor]:
    for held in _everything_in(value):
        for p in held.parameters() if isinstance(held, nn.Module) else [held]:
            if isinstance(p, Tensor) and p.requires_grad and p.is_leaf:
                yield p


def _a(layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"


def made_private(model: nn.Module) -> nn.Module:
    """Copy `model` with replacements for all layers that mix the records of a batch or draw random numbers.

    BatchNorm becomes GroupNorm with the same scale and shift, dropout and stochastic depth are set to 0, running
    statistics are left out, RReLU becomes LeakyReLU, `nn.Embedding` loses `max_norm`, `scale_grad_by_freq` and
    `sparse`, half precision becomes float32. Layers and parameters keep their names. The statistics that BatchNorm has
    learned are lost, and a pretrained model must be trained again; a BatchNorm in `eval()` keeps them, and stays.

    `replacements` counts what was replaced; `fedprivacy doctor` names the remaining problems.

    >>> model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16))
    >>> made_private(model)[1].num_groups
    4
    """
    fixed = copy.deepcopy(model)
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in fixed.parameters()):
        fixed.float()
    for layer in fixed.modules():
        _set_right(layer)
    replaced = {layer: _replacement(layer) for layer in fixed.modules() if _has_replacement(layer)}
    for parent in list(fixed.modules()):
        for name, child in parent._modules.items():
            if child in replaced:
                parent.register_module(name, replaced[child])
    return replaced.get(fixed, fixed)


def replacements(model: nn.Module, mended: nn.Module) -> list[str]:
    """Count what `made_private` has replaced in a model: each kind of change with its number of layers.

    >>> model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.Dropout(0.5))
    >>> replacements(model, made_private(model))
    ['1 BatchNorm2d by GroupNorm', '1 Dropout by p=0.0']
    """
    layers = dict(mended.named_modules())
    changes = Counter(_change(layer, layers[name]) for name, layer in model.named_modules())
    return [f"{count} {change}" for change, count in changes.items() if change]


def _change(before: nn.Module, after: nn.Module) -> str:
    """Describe the change of one layer by its new type or its new settings; empty if there is none."""
    kind, old = type(before).__name__, vars(before)
    if type(before) is not type(after):
        return f"{kind} by {type(after).__name__}"
    settings = {key: value for key, value in vars(after).items() if value is None or isinstance(value, int | float)}
    new = [f"{key}={value}" for key, value in settings.items() if old[key] != value]
    return f"{kind} by {', '.join(new)}" if new else ""


def _has_replacement(layer: nn.Module) -> bool:
    """Return whether another layer does what this one does, for each record alone."""
    if _frozen(layer):
        return False
    if type(layer) is nn.BatchNorm1d:
        return layer.num_features > 1
    return type(layer) in {nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.RReLU}


def _replacement(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.RReLU):
        return nn.LeakyReLU((layer.lower + layer.upper) / 2, layer.inplace)
    assert isinstance(layer, _BatchNorm)  # the other types of `_has_replacement`
    groups = 1 if isinstance(layer, nn.BatchNorm1d) else _groups(layer.num_features)
    norm = nn.GroupNorm(groups, layer.num_features, layer.eps, affine=False)
    norm.affine, norm.weight, norm.bias = layer.affine, layer.weight, layer.bias
    return norm.train(layer.training)


def _groups(channels: int) -> int:
    """Return 32 groups, as Wu and He (2018) use, or the next power of two that leaves each enough channels.

    Features without a map (BatchNorm1d) form one group instead, as in LayerNorm, because their order has no meaning.
    """
    return next((g for g in _GROUPS if channels % g == 0 and channels // g >= _LEAST_CHANNELS), 1)


def _set_right(layer: nn.Module) -> None:
    """Change a layer's settings in place."""
    if isinstance(layer, _DropoutNd):
        layer.p = 0.0
    elif path := _path(layer):
        setattr(layer, path, 0.0)
    elif isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
        layer.dropout = 0.0
    elif isinstance(layer, _InstanceNorm) and not _frozen(layer):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        layer.max_norm, layer.scale_grad_by_freq, layer.sparse = None, False, False
