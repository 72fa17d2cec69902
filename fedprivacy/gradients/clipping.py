"""How much of each record's gradient counts: the scale that bounds one record's contribution.

Every clipping keeps one promise, on which the noise relies: the scaled gradient of a record has Euclidean norm at most
`clipping_norm`, whatever the record is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the names of the clippings are asked for by every `--help`, which need not wait for torch
    from torch import Tensor

_ROUNDING_MARGIN = 1.0 - 2.0**-20
"""Clip a little below C, so that float32 rounding of the scaled gradient cannot carry its norm above C."""

_LEAST_STABILITY = 1e-6
"""With less, a gradient so small that its norm vanishes in float32 has too large a scale."""


class Clipping(Protocol):
    """Scales of the records' gradients, from their norms.

    Formal guarantee: the root of sum over groups of (scale * norm)^2 is at most `clipping_norm`, for every record.
    """

    def groups(self, names: Sequence[str]) -> list[int]:
        """The group that each named parameter is clipped with, counted from 0."""
        ...

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        """Factors for each group and record.

        Args:
            squared_norms: of each record's gradient within each group, shape [groups, batch], float64, finite.
            clipping_norm: C, a number, a tensor without axes, or one for each record, shape [batch].

        Returns:
            Shape [groups, batch].
        """
        ...


@dataclass(frozen=True, slots=True)
class FlatClipping:
    """The whole gradient is scaled by min(1, C / norm) (Abadi et al. 2016)."""

    def groups(self, names: Sequence[str]) -> list[int]:
        """One group."""
        return [0] * len(names)

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        return squared_norms.rsqrt().mul_(clipping_norm * _ROUNDING_MARGIN).clamp_(max=1.0)


@dataclass(frozen=True, slots=True)
class PerLayerClipping:
    """Each of K layers' gradients is scaled to norm at most C / sqrt(K) (McMahan et al. 2018), so all to C."""

    def groups(self, names: Sequence[str]) -> list[int]:
        """One group for each layer: parameters whose names agree up to the last dot."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        return [layers.index(name.rpartition(".")[0]) for name in names]

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        share = clipping_norm * _ROUNDING_MARGIN / len(squared_norms) ** 0.5
        return squared_norms.rsqrt().mul_(share).clamp_(max=1.0)


@dataclass(frozen=True, slots=True)
class AutomaticClipping:
    """AUTO-S (Bu et al. 2023): every gradient is scaled by C / (norm + stability), large or small.

    C then only rescales the learning rate: leave it at 1.

    Attributes:
        stability: keeps small gradients small; the paper's 0.01.
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        if not self.stability >= _LEAST_STABILITY:
            raise ValueError(f"stability is {self.stability}; choose a number from {_LEAST_STABILITY:g}.")

    def groups(self, names: Sequence[str]) -> list[int]:
        """One group."""
        return [0] * len(names)

    def scales(self, squared_norms: Tensor, clipping_norm: float | Tensor) -> Tensor:
        scales: Tensor = clipping_norm * _ROUNDING_MARGIN / (squared_norms.sqrt() + self.stability)
        return scales


CLIPPINGS: dict[str, Callable[[], Clipping]] = {
    "flat": FlatClipping,
    "per-layer": PerLayerClipping,
    "automatic": AutomaticClipping,
}
"""What makes a clipping, by the name that configurations and grants have for it; see `training.adaptive` for more."""
