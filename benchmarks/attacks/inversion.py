"""Gradient inversion (Zhu, Liu, Han 2019): one update, turned back into the record that it was computed from.

The client is asked by a real message for one local step on one record, and what it sends is all that the attacker has,
beside the model, which the server knows. Without noise the record comes back; with the noise of a private run
it does not. A record alone in its batch is the easiest case, and one that a client cannot exclude: who joins a Poisson
sample is chance.

Where the model begins with a linear layer that has a bias, no search is needed. Each output i of that layer has the
weight gradient d_i x and the bias gradient d_i, so that x is their quotient (Phong et al. 2018), whatever clipping has
scaled both by. Of any other model, an input is searched whose gradient points where the update points (Geiping,
Bauermeister, Dröge, Moeller 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.attacks.trainers import new_model
from fedprivacy.audit.real_client import AskedClient, SentUpdate, parameters_of
from fedprivacy.tasks.task import Shard, Task

HARDLY_ANY_NOISE = 1e-6
"""A noise multiplier that hides nothing: a client can be asked for less noise, never for none."""

_SEARCH_RATE, _SMOOTHNESS = 0.05, 1e-3
"""Step size of the search in units of the inputs' range, and the weight of the total variation beside the cosine."""


@dataclass(frozen=True, slots=True, eq=False)
class Inverted:
    """What an attacker made of one update.

    Attributes:
        record: the true inputs, as the model takes them.
        recovered: what the attacker believes them to be, the same shape, within the range of inputs.
        peak: the length of that range.
    """

    record: NDArray[np.float64]
    recovered: NDArray[np.float64]
    peak: float

    @property
    def psnr(self) -> float:
        """Peak signal-to-noise ratio in dB; infinite where both are the same. Above 30 no eye finds a difference."""
        error = float(np.mean((self.record - self.recovered) ** 2))
        return math.inf if error == 0.0 else 10.0 * math.log10(self.peak**2 / error)


def inverted(
    task: Task,
    record: Shard,
    *,
    noise_multiplier: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    clipping_norm: float = 1.0,
    searching: int = 500,
    seed: int = 0,
) -> Inverted:
    """Ask a client that holds one record for one local step on it, and turn what it sends into the record.

    The attacker knows the model, the record's target and the range of inputs.

    Args:
        task: model and loss.
        record: exactly one.
        noise_multiplier: sigma of the step; `HARDLY_ANY_NOISE`: as without privacy.
        bounds: smallest and largest value of an input.
        clipping_norm: C.
        searching: steps of the search, where one is needed.
        seed: of the model, of the client's randomness and of the search.

    Raises:
        ValueError: there is not exactly one record.
    """
    if len(record) != 1:
        raise ValueError(f"{len(record)} records are given; give one.")
    model = new_model(task, seed)
    client = AskedClient(task, record, seed=seed)
    grant = replace(client.usual_grant(), noise_multiplier=noise_multiplier, clipping_norm=clipping_norm)
    answer = client.answer(grant, parameters_of(model))
    found = _read_off(model, answer, record.inputs.shape)
    if found is None:
        like = Shard(torch.zeros_like(record.inputs), record.targets)  # its shape, and what the attacker knows
        found = _searched(task, model, answer, like, bounds=bounds, steps=searching, seed=seed)
    return Inverted(record.inputs.numpy().astype(np.float64), np.clip(found, *bounds), bounds[1] - bounds[0])


def _read_off(model: nn.Module, answer: SentUpdate, shape: torch.Size) -> NDArray[np.float64] | None:
    """The quotient of the first layer's gradients; None: the inputs do not go straight into a linear layer with bias.

    All outputs are used: of x = w_i / d_i, the least-squares solution, which is exact without noise and the best
    with it.
    """
    first = _first_linear(model, shape)
    if first is None:
        return None
    weight, bias = answer.moved[f"{first}weight"], answer.moved[f"{first}bias"]
    return np.asarray(bias @ weight / np.maximum(bias @ bias, np.finfo(float).tiny)).reshape(shape)


def _first_linear(model: nn.Module, shape: torch.Size) -> str | None:
    """The prefix of its parameters' names."""
    named: list[tuple[str, nn.Module]] = [("", model)]
    if isinstance(model, nn.Sequential):
        named = [(f"{name}.", layer) for name, layer in model.named_children() if not isinstance(layer, nn.Flatten)]
    prefix, layer = named[0]
    if not isinstance(layer, nn.Linear) or layer.bias is None or layer.in_features != math.prod(shape[1:]):
        return None
    return prefix if layer.weight.requires_grad and layer.bias.requires_grad else None


def _searched(
    task: Task,
    model: nn.Module,
    answer: SentUpdate,
    like: Shard,
    *,
    bounds: tuple[float, float],
    steps: int,
    seed: int,
) -> NDArray[np.float64]:
    """The input whose gradient has the smallest angle to the update, by Adam on the sign of the derivative."""
    wanted = -torch.from_numpy(answer.flat).float()
    low, high = bounds
    generator = torch.Generator().manual_seed(seed)
    guess = low + (high - low) * torch.rand(like.inputs.shape, generator=generator)
    guess.requires_grad_()
    search = torch.optim.Adam([guess], lr=_SEARCH_RATE * (high - low))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(search, steps)
    trained = [p for p in model.parameters() if p.requires_grad]
    for _ in range(steps):
        loss = task.loss(model(guess), like.targets).sum()
        gradients = torch.autograd.grad(loss, trained, create_graph=True)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        angle = 1.0 - functional.cosine_similarity(flat, wanted, dim=0)
        (derivative,) = torch.autograd.grad(angle + _SMOOTHNESS * _variation(guess), guess)
        guess.grad = derivative.sign()
        search.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(low, high)
    return guess.detach().numpy().astype(np.float64)


def _variation(images: Tensor) -> Tensor:
    """Mean difference of neighbouring pixels; of inputs that are no images: nothing."""
    if images.dim() < 3:
        return torch.zeros(())
    down, across = images.diff(dim=-2).abs().mean(), images.diff(dim=-1).abs().mean()
    return down + across
