"""Probes of a model while it runs: the layer that fails or changes something, and inputs and outputs of each layer.

During a forward pass every layer has hooks; afterwards the model is as before. Its other attributes are compared before
and after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor, nn

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

    with _watched(model, lambda inputs: (next(order), _copies(inputs)), leave):
        run()
    return returned


def first_to_change(model: nn.Module, run: Callable[[], object], observed: Callable[[], object]) -> str:
    """Find the innermost layer during whose forward pass in `run` the observed value first changes; "" if none does."""
    changed = []

    def leave(layer: str, before: object, _: object) -> None:
        if observed() != before:
            changed.append(layer)

    with _watched(model, lambda _: observed(), leave):
        run()
    return changed[0] if changed else ""


def overwritten(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """List the layers whose input is changed in place, in `run`, after they have returned."""
    read: list[tuple[str, Tensor, int]] = []

    def leave(layer: str, inputs: object, _: object) -> None:
        read.extend((layer, tensor, tensor._version) for tensor in _tensors_in(inputs))

    with _watched(model, lambda inputs: inputs, leave):
        run()
    return list(dict.fromkeys(layer for layer, tensor, version in read if tensor._version != version))


def failing_layer(model: nn.Module, run: Callable[[], object]) -> str | None:
    """Find the innermost layer that raises in `run`; None if nothing raises."""
    with _watched(model) as within:
        try:
            run()
        except Exception:
            return within[-1][0] if within else ""
    return None


def state_of(model: nn.Module) -> State:
    """Collect everything that the layers hold: attributes, buffers, parameters, and the contents of collections."""
    return {
        (name, key): [(held, held._version if isinstance(held, Tensor) else 0) for held in everything_in(value)]
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
def _watched(
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


def everything_in(value: object) -> Iterator[object]:
    """Yield the value and, if it is a collection, its contents."""
    yield value
    if isinstance(value, list | tuple | set | deque | dict):
        members: Iterable[object] = value.values() if isinstance(value, dict) else value
        for member in members:
            yield from everything_in(member)


def _tensors_in(value: object) -> Iterator[Tensor]:
    return (member for member in everything_in(value) if isinstance(member, Tensor))


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
