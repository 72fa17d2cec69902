"""Global models that an honest server would not send."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedprivacy.audit.our_client.audited_client import Audited, Parameters
from fedprivacy.gradients import trainable_parameters

_LARGE = 30.0
"""Factor by which the large parameters exceed the usual ones."""

_AMPLIFICATION = 1e8
"""Factor by which hostile parameters magnify the rounding of what they subtract from one another."""


def hostile_parameters(audited: Audited) -> Iterator[tuple[str, Parameters]]:
    """Yield words and parameters: a new model's, large random ones, and some under which rounding decides."""
    yield "under a new model", audited.parameters
    yield "under large parameters", _large(audited)
    yield "under parameters that a hostile server chose", amplifying(audited)


def _large(audited: Audited) -> Parameters:
    generator = audited.generator(4)
    named = trainable_parameters(audited.task.model())
    return {
        name: (_LARGE * torch.randn(p.shape, generator=generator) / _fan_in(p) ** 0.5).to(p.dtype).numpy()
        for name, p in named.items()
    }


def amplifying(audited: Audited) -> Parameters:
    """Layers whose units all compute nearly the same, and a last one that takes huge multiples of their differences.

    What is left of a record's output is the rounding of its hidden numbers (`_AMPLIFICATION` times). Were it to depend
    on who else is in the batch, so would the gradient.
    """
    generator = audited.generator(5)
    named = trainable_parameters(audited.task.model())
    matrices = [name for name, p in named.items() if p.dim() > 1]
    values = {}
    for name, p in named.items():
        random = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if p.dim() < 2:
            filled = torch.zeros_like(random) if matrices and name > matrices[-1] else torch.ones_like(random)
        elif name == matrices[-1]:
            centred = random - random.mean(dim=tuple(range(1, p.dim())), keepdim=True)
            filled = _AMPLIFICATION * centred / _fan_in(p)
        else:
            filled = 1e-4 * random / _fan_in(p) ** 0.5
        values[name] = filled.to(p.dtype).numpy()
    return values


def _fan_in(parameter: torch.Tensor) -> int:
    return max(parameter[0].numel() if parameter.dim() > 1 else 1, 1)
