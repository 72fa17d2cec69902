"""What a model holds beside its parameters, and whether a forward pass has changed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

State = dict[tuple[str, str], list[tuple[object, int]]]
"""By layer and attribute: the objects found there, themselves and their versions."""

_TORCH_S_OWN = frozenset(vars(nn.Module()))


def state_of(model: nn.Module) -> State:
    """Everything that the layers hold: attributes, buffers, parameters, and what is in lists of them."""
    return {
        (name, key): list(_objects(value))
        for name, layer in model.named_modules()
        for key, value in (_attributes(layer) | layer._buffers | layer._parameters).items()
    }


def changed_layers(before: State, after: State) -> list[str]:
    """The layers that hold something else than before."""
    return sorted(
        {layer for (layer, key), held in after.items() if not _same(before.get((layer, key)), held)}
        | {layer for layer, key in before.keys() - after.keys()}
    )


def _attributes(layer: nn.Module) -> dict[str, object]:
    """A layer's attributes; of torch's own layers only the public ones, for some rearrange the others."""
    own = not type(layer).__module__.startswith("torch.")
    return {k: v for k, v in vars(layer).items() if k not in _TORCH_S_OWN and (own or not k.startswith("_"))}


def _objects(value: object) -> Iterator[tuple[object, int]]:
    """The value and, if it is a collection, what is in it."""
    yield value, value._version if isinstance(value, Tensor) else 0
    if isinstance(value, list | tuple | set | deque | dict):
        members: Iterable[object] = value.values() if isinstance(value, dict) else value
        for member in members:
            yield from _objects(member)


def _same(before: list[tuple[object, int]] | None, after: list[tuple[object, int]]) -> bool:
    if before is None or len(before) != len(after):
        return False
    return all(
        version == version_before and (value is value_before or (isinstance(value, _PLAIN) and value == value_before))
        for (value_before, version_before), (value, version) in zip(before, after, strict=True)
    )


_PLAIN = int | float | str | bytes
