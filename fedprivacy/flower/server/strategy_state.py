"""What a Flower strategy remembers from round to round, as data.

Flower's strategies have no interface for it: they keep momentum and moments in plain attributes. So the attributes of
the kinds below are the state, and callables and everything else are left alone. A strategy that keeps its state in
another way defines `state_dict()` and `load_state_dict()`, which give and take a dictionary of the same kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

StrategyValue = (
    bool | int | float | str | np.generic | NDArray[Any] | list[NDArray[Any]] | dict[str, NDArray[Any]] | ArrayRecord
) | None
StrategyState = Mapping[str, StrategyValue]
"""By name of the attribute."""

Layout = dict[str, tuple[str, Any]]
"""Of a state, without its arrays: the kind of each value, and what JSON can hold of it."""


def read_state(strategy: Strategy) -> StrategyState:
    """What the strategy remembers now."""
    if _speaks_for_itself(strategy):
        return dict(strategy.state_dict())  # type: ignore[attr-defined]
    return {name: value for name, value in vars(strategy).items() if _kept(value)}


def write_state(strategy: Strategy, state: StrategyState) -> None:
    """Let the strategy remember `state`."""
    if _speaks_for_itself(strategy):
        strategy.load_state_dict(dict(state))  # type: ignore[attr-defined]
        return
    for name, value in state.items():
        setattr(strategy, name, value)


def pack(state: StrategyState) -> tuple[Layout, dict[str, NDArray[Any]]]:
    """Separate a state into what JSON can hold, and its arrays."""
    layout: Layout = {}
    arrays: dict[str, NDArray[Any]] = {}
    for number, (name, value) in enumerate(state.items()):
        kind, held, members = _taken_apart(value)
        layout[name] = (kind, held)
        arrays |= {f"{number}.{index}": member for index, member in enumerate(members)}
    return layout, arrays


def unpack(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> StrategyState:
    """Put together what `pack` has separated.

    Raises:
        KeyError: the layout names a kind or an array that there is not.
    """

    def members(number: int) -> Iterator[NDArray[Any]]:
        index = 0
        while (name := f"{number}.{index}") in arrays:
            yield arrays[name]
            index += 1

    return {
        name: _put_together(kind, held, list(members(number)))
        for number, (name, (kind, held)) in enumerate(layout.items())
    }


def forgotten(strategy: Strategy) -> list[str]:
    """Attributes that no checkpoint keeps, though they may be state: what is neither data nor something to call."""
    if _speaks_for_itself(strategy):
        return []
    return sorted(name for name, value in vars(strategy).items() if not _kept(value) and not callable(value))


def _speaks_for_itself(strategy: Strategy) -> bool:
    return hasattr(strategy, "state_dict") and hasattr(strategy, "load_state_dict")


def _kept(value: object) -> bool:
    match value:
        case None | bool() | int() | float() | str() | ArrayRecord():
            return True
        case np.generic() | np.ndarray():
            return value.dtype.kind in "biuf"
        case list():
            return all(isinstance(member, np.ndarray) and _kept(member) for member in value)
        case dict():
            return all(isinstance(name, str) and isinstance(v, np.ndarray) and _kept(v) for name, v in value.items())
    return False


def _taken_apart(value: StrategyValue) -> tuple[str, Any, list[NDArray[Any]]]:
    """The kind of a value, what JSON can hold of it, and its arrays in order."""
    match value:
        case np.generic():  # before float: numpy's float64 is one, and counts with other types in its own way
            return "scalar", None, [np.asarray(value)]
        case np.ndarray():
            return "array", None, [value]
        case list():
            return "list", None, value
        case ArrayRecord():
            return "record", list(value), value.to_numpy_ndarrays()
        case dict():
            return "dict", list(value), list(value.values())
    return "plain", value, []


def _put_together(kind: str, held: Any, members: list[NDArray[Any]]) -> StrategyValue:
    match kind:
        case "plain":
            return held  # type: ignore[no-any-return]
        case "scalar":
            return members[0][()]
        case "array":
            return members[0]
        case "list":
            return members
        case "record":
            return ArrayRecord({name: Array(member) for name, member in zip(held, members, strict=True)})
        case "dict":
            return dict(zip(held, members, strict=True))
    raise KeyError(kind)
