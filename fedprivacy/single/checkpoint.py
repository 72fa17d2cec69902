"""Checkpoint of a training on one shard: everything that the next step depends on, but for records and account."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from fedprivacy._support.durable import write_durably

FILE = "training.pt"
ACCOUNT = "account.log"
"""Name of the account in the folder of a checkpoint, if none is given."""

_VERSION = 1


def write(folder: Path, state: dict[str, Any]) -> None:
    """Replace the folder's checkpoint, whole or not at all; it is on the disk when this returns.

    Raises:
        OSError: it cannot be written; the former one is still there.
    """
    content = io.BytesIO()
    torch.save({"version": _VERSION, **state}, content)
    write_durably(folder / FILE, content.getvalue())


def read(folder: Path) -> dict[str, Any] | None:
    """Read a folder's checkpoint; None: there is none. Nothing in the file is run.

    Raises:
        ValueError: it is not what `write` wrote, or an optimiser's state is of kinds that are not read.
    """
    if not (folder / FILE).exists():
        return None
    try:
        state = torch.load(folder / FILE, map_location="cpu", weights_only=True)
        if state.pop("version") == _VERSION:
            return dict(state)
        problem = "it is of another version"
    except Exception as error:
        problem = str(error).partition("\n")[0]
    raise ValueError(
        f"'{folder / FILE}' cannot be read as a checkpoint ({problem}). Put an undamaged copy back, or begin in a new "
        "folder with account= the same; what was spent stays in the account. An optimiser or schedule must keep "
        "numbers and tensors alone."
    )
