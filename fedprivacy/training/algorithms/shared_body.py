"""Algorithms with a shared body and personal layers: FedPer, FedRep, and local normalisation (FedBN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedprivacy.training.algorithms.algorithm import Algorithm, LocalRound, LocalUpdate

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class FedPer(Algorithm):
    """Body and head train together; the head never leaves its client (Arivazhagan et al. 2019).

    One release covers both, so that the head costs no additional privacy.
    """

    keeps: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    def layers(self, model: nn.Module) -> frozenset[str]:
        return head_of(model)

    def train(self, client: LocalRound) -> LocalUpdate:
        trained = client.descend(self.model(client.shared, client.own, client.personal), client.steps)
        return self._split(client, trained)

    def model(self, shared: Tensor, kept: Tensor, personal: Tensor | None) -> Tensor:
        assert personal is not None
        return kept.where(personal, shared)

    def _split(self, client: LocalRound, trained: Tensor) -> LocalUpdate:
        assert client.personal is not None
        return LocalUpdate(sent=client.shared.where(client.personal, trained), kept=trained)


@dataclass(frozen=True)
class FedRep(FedPer):
    """The head moves first, then the body (Collins et al. 2021).

    Each step's release covers the gradients of both but moves only one: with privacy, FedPer gains more from the same
    charge.

    Attributes:
        personal_steps: number of a round's local steps that move the head; 0: half of them.
    """

    fewest_steps: ClassVar[int] = 2
    personal_steps: int = 0

    def train(self, client: LocalRound) -> LocalUpdate:
        assert client.personal is not None
        start = self.model(client.shared, client.own, client.personal)
        body = max(1, client.steps - (self.personal_steps or client.steps // 2))
        headed = client.descend(start, client.steps - body, only=client.personal)
        return self._split(client, client.descend(headed, body, only=~client.personal))


@dataclass(frozen=True)
class OwnNormalisation(FedPer):
    """Every client has scales and offsets of its own in normalisation layers (FedBN, Li et al. 2021).

    No layer may mix records, so there are no batch statistics to keep: these are the trained parameters of group,
    layer and instance normalisation.
    """

    def layers(self, model: nn.Module) -> frozenset[str]:
        return normalisations_of(model)


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
    """Return the trained parameters of normalisation layers. Raises ValueError: there are none."""
    from torch.nn import GroupNorm, LayerNorm, RMSNorm
    from torch.nn.modules.instancenorm import _InstanceNorm

    kinds = GroupNorm, LayerNorm, RMSNorm, _InstanceNorm
    named = {name for name, layer in model.named_modules() if isinstance(layer, kinds)}
    found = frozenset().union(*(layer for layer in _trained_by_layer(model) if _owner(next(iter(layer))) in named))
    if not found:
        raise ValueError("the model has no normalisation layer with trained parameters; choose another algorithm.")
    return found


def _trained_by_layer(model: nn.Module) -> list[frozenset[str]]:
    """List the names of each layer's own trained parameters, in the model's order; layers without any are left out."""
    layers: dict[str, set[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layers.setdefault(_owner(name), set()).add(name)
    return [frozenset(names) for names in layers.values()]


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]
