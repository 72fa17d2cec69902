"""A look into a model while it runs: which layer fails, which one changes something, what each reads and computes.

For the length of a forward pass every layer has hooks; afterwards the model is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Call:
    """One layer's part in a forward pass.

    Attributes:
        layer: the layer's name.
        order: how many layers had been called before.
        inputs: copies of the tensors that it was given.
        outputs: copies of the tensors that it returned.
    """

    layer: str
    order: int
    inputs: list[Tensor]
    outputs: list[Tensor]


def calls(model: nn.Module, run: Callable[[], object]) -> list[Call]:
    """Every call of a layer during `run`, in the order in which they return: inner layers before outer ones."""
    watcher = _Calls()
    with _watched(model, watcher):
        run()
    return watcher.returned


def first_to_change(model: nn.Module, run: Callable[[], object], observed: Callable[[], object]) -> str:
    """The innermost layer during whose forward pass in `run` what is `observed` first changes; "" if none does."""
    watcher = _Changes(observed)
    with _watched(model, watcher):
        run()
    return watcher.changed[0] if watcher.changed else ""


def overwritten(model: nn.Module, run: Callable[[], object]) -> list[str]:
    """The layers whose input is changed in place, in `run`, after they have returned."""
    watcher = _Read()
    with _watched(model, watcher):
        run()
    changed = [layer for layer, tensor, version in watcher.read if tensor._version != version]
    return list(dict.fromkeys(changed))


def failing_layer(model: nn.Module, run: Callable[[], object]) -> str | None:
    """The innermost layer that raises in `run`, or None if nothing does."""
    watcher = _Within()
    with _watched(model, watcher):
        try:
            run()
        except Exception:
            return watcher.names[-1] if watcher.names else ""
    return None


class _Watcher(Protocol):
    def enter(self, layer: str, given: object) -> None: ...

    def leave(self, layer: str, returned: object) -> None: ...


@contextmanager
def _watched(model: nn.Module, watcher: _Watcher) -> Iterator[None]:
    def watch(name: str, layer: nn.Module) -> tuple[Any, Any]:
        def enter(_: nn.Module, args: object, kwargs: object) -> None:
            watcher.enter(name, (args, kwargs))

        def leave(_: nn.Module, args: object, returned: object) -> None:
            watcher.leave(name, returned)

        return layer.register_forward_pre_hook(enter, with_kwargs=True), layer.register_forward_hook(leave)

    handles = [handle for name, layer in model.named_modules() for handle in watch(name, layer)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Calls:
    def __init__(self) -> None:
        self.returned: list[Call] = []
        self._open: list[tuple[int, list[Tensor]]] = []
        self._entered = 0

    def enter(self, layer: str, given: object) -> None:
        self._open.append((self._entered, _copies(given)))
        self._entered += 1

    def leave(self, layer: str, returned: object) -> None:
        order, inputs = self._open.pop()
        self.returned.append(Call(layer, order, inputs, _copies(returned)))


class _Changes:
    def __init__(self, observed: Callable[[], object]) -> None:
        self.changed: list[str] = []
        self._observed = observed
        self._before: list[object] = []

    def enter(self, layer: str, given: object) -> None:
        self._before.append(self._observed())

    def leave(self, layer: str, returned: object) -> None:
        if self._observed() != self._before.pop():
            self.changed.append(layer)


class _Read:
    def __init__(self) -> None:
        self.read: list[tuple[str, Tensor, int]] = []
        self._given: list[object] = []

    def enter(self, layer: str, given: object) -> None:
        self._given.append(given)

    def leave(self, layer: str, returned: object) -> None:
        self.read += [(layer, tensor, tensor._version) for tensor in _tensors_in(self._given.pop())]


class _Within:
    def __init__(self) -> None:
        self.names: list[str] = []

    def enter(self, layer: str, given: object) -> None:
        self.names.append(layer)

    def leave(self, layer: str, returned: object) -> None:
        self.names.pop()


def _tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(member)


def _copies(value: object) -> list[Tensor]:
    """What is changed in place later does not change them."""
    return [tensor.detach().clone() for tensor in _tensors_in(value)]
