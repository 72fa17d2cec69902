"""Which device a client computes on."""

from __future__ import annotations

import torch

from fedprivacy.runs.configuration import ConfigError


def choose_device(name: str, client_number: int = 0) -> torch.device:
    """The device for a client.

    Args:
        name: "cpu", "cuda" or "cuda:N"; "auto" spreads clients over the GPUs that are there, else takes the CPU.
        client_number: the client's place among the clients of this machine.

    Raises:
        ConfigError: this machine lacks the device.
    """
    gpus = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda", client_number % gpus) if gpus else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError([f"device is '{name}', but this machine has {gpus} GPUs; use auto or cpu."])
    return device
