"""Clippings: scales that bound one record's contribution.

Every clipping keeps one promise, on which the noise relies: the scaled gradient of a record has Euclidean norm at most
`clipping_norm`, whatever the record is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # every `--help` asks for the names of the clippings, and need not wait for torch
    from torch import Tensor

_ROUNDING_MARGIN = 1.0 - 2.0**-20
"""Factor slightly below 1 on C: float32 rounding of the scaled gradient cannot carry its norm above C."""

_LEAST_STABILITY = 1e-6
"""Least stability: below it, a gradient whose norm vanishes in float32 would have too large a scale."""


class Clipping(Protocol):
    """Scales of the records' gradients, computed from their norms.

    Formal guarantee: the root of sum over groups of (scale * norm)^2 is at most `clipping_norm`, for every record.
    """

    def groups(self, names: Sequence[str]) -> list[int]:
        """Return the number, from 0, of the group with which each named parameter is clipped."""
        ...

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        """Compute a factor for each group and record.

        Args:
            squared_norms: squared norm of each record's gradient within each group, shape [groups, batch], float64. A
                factor of one that is not finite is not used.
            clipping_norm: C, a number, a tensor without axes, or one for each record, shape [batch].

        Returns:
            Shape [groups, batch].
        """
        ...


@dataclass(frozen=True, slots=True)
class FlatClipping:
    """The whole gradient is scaled by min(1, C / norm) (Abadi et al. 2016)."""

    def groups(self, names: Sequence[str]) -> list[int]:
        """Put all parameters into one group."""
        return [0] * len(names)

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        return squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(max=1.0)


@dataclass(frozen=True, slots=True)
class PerLayerClipping:
    """Each of K layers' gradients is scaled to norm at most C / sqrt(K) (McMahan et al. 2018), so all to C."""

    def groups(self, names: Sequence[str]) -> list[int]:
        """Make one group for each layer: parameters whose names agree up to the last dot."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        return [layers.index(name.rpartition(".")[0]) for name in names]

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        share = clipping_norm * _ROUNDING_MARGIN / len(squared_norms) ** 0.5
        return squared_norms.rsqrt().mul_(share).clamp_(max=1.0)


@dataclass(frozen=True, slots=True)
class AutomaticClipping:
    """AUTO-S (Bu et al. 2023): every gradient, large or small, is scaled by C / (norm + stability).

    C then only rescales the learning rate: leave it at 1.

    Attributes:
        stability: number that keeps small gradients small; the paper's 0.01.
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        if not self.stability >= _LEAST_STABILITY:
            raise ValueError(f"stability is {self.stability}; choose a number from {_LEAST_STABILITY:g}.")

    def groups(self, names: Sequence[str]) -> list[int]:
        """Put all parameters into one group."""
        return [0] * len(names)

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        return (squared_norms.sqrt() + self.stability).reciprocal_().mul_(clipping_norm * _ROUNDING_MARGIN)


CLIPPINGS: dict[str, Callable[[], Clipping]] = {
    "flat": FlatClipping,
    "per-layer": PerLayerClipping,
    "automatic": AutomaticClipping,
}
"""Factories of clippings, by the name that configurations and grants have for them; `training.adaptive` adds more."""
