"""Choice of the device on which a client computes, and of the type in which it computes activations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedprivacy._support.settings import ConfigError

if TYPE_CHECKING:
    import torch

AUTOCASTS = ("float32", "bfloat16")
"""Names of the types in which activations can be computed."""

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

_CUDA = 2**29
"""Bytes of a GPU's memory that CUDA takes for each process, beside its tensors."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine: the name of its kind, and its bytes of memory."""

    kind: str
    memory: int


def is_device(name: str) -> bool:
    """Return whether a device can have this name: auto, cpu, cuda or cuda:N."""
    return _DEVICE.fullmatch(name) is not None


def check_device(name: str) -> None:
    """Refuse a name that no device can have. Raises ConfigError: says which there can be."""
    if not is_device(name):
        raise ConfigError(f"device is '{name}'; choose auto, cpu, cuda or cuda:N.")


def choose_device(name: str, client_number: int = 0) -> torch.device:
    """The device for a client.

    Args:
        name: "cpu", "cuda" or "cuda:N"; "auto" spreads clients over the GPUs that are there, else takes the CPU.
        client_number: the client's place among the clients of this machine.

    Raises:
        ConfigError: this machine lacks the device.
    """
    import torch

    gpus = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda", client_number % gpus) if gpus else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(f"device is '{name}', but this machine has {gpus} GPUs; use auto or cpu.")
    return device


def gpus_here() -> list[Gpu]:
    """The GPUs that this process sees, by their numbers."""
    import torch

    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [Gpu(each.name, each.total_memory) for each in found]


def take_share(share: float) -> None:
    """Let this process have so much of its GPU's memory; more than that is refused as if there were no more."""
    import torch

    if share < 1.0 and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(share / 2.0, share - _CUDA / total))


def autocast_of(name: str) -> torch.dtype | None:
    """The type in which activations are computed, by its name, one of `AUTOCASTS`; None: float32, as models are."""
    import torch

    return None if name == AUTOCASTS[0] else getattr(torch, name)
