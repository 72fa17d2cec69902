"""A public model that a run begins with: what was learned of public records costs nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.tasks.loader import model_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedprivacy.tasks import Task


def initial_parameters(file: str, task: Task) -> dict[str, Tensor]:
    """The trained parameters that a file holds for a task's model, by name; what else is in it is left aside.

    Args:
        file: safetensors, for example a run's `model.safetensors`.
        task: whose model begins with them.

    Raises:
        ConfigError: the file cannot be read, or lacks a trained parameter of the model, or has it in another shape.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fedprivacy.gradients import trainable_parameters

    own = trainable_parameters(model_of(task))
    try:
        found = load_file(Path(file))
    except (SafetensorError, OSError) as error:
        unreadable = f"initial-model is '{file}', which cannot be read ({error}); name a safetensors file."
        raise ConfigError([unreadable]) from error
    for name, parameter in own.items():
        shape = list(found[name].shape) if name in found else "none"
        if shape != (wanted := list(parameter.shape)):
            raise ConfigError(
                [
                    f"initial-model is '{file}', and for '{name}' the task's model wants shape {wanted}, where it has "
                    f"{shape}; name a file of this model, or leave it open."
                ]
            )
    return {name: found[name].to(parameter.dtype) for name, parameter in own.items()}
