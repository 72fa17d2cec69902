"""Extras: third-party packages that an install may lack, and the command that adds them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

EXTRAS = {
    "altair": "figures",
    "vl_convert": "figures",
    "datasets": "simulation",
    "flwr_datasets": "simulation",
    "ray": "simulation",
    "sklearn": "simulation",
    "psycopg": "postgres",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "prometheus_client": "prometheus",
    "numba": "fast",
}
"""Extra that installs each module."""


class MissingExtraError(ImportError):
    """A module of an extra is not installed. The text names the module and what to type."""

    def __init__(self, module: str) -> None:
        super().__init__(f"{module} is not installed; {command(EXTRAS[module])}.", name=module)


@contextmanager
def needing_extras() -> Iterator[None]:
    """Raise a `MissingExtraError` where the block imports a module of an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        raise MissingExtraError(module) from error


def lacks(*modules: str) -> bool:
    """Return whether one of these modules is not installed; none is imported."""
    return any(find_spec(module) is None for module in modules)


def installed() -> dict[str, bool]:
    """Return whether each extra is installed, by its name; nothing is imported."""
    return {extra: not lacks(*(each for each in EXTRAS if EXTRAS[each] == extra)) for extra in EXTRAS.values()}


def command(extra: str) -> str:
    """Return the command that installs an extra beside those that are there, by the tool that made this environment."""
    beside = {name for name, there in installed().items() if there}
    if (Path(sys.prefix) / "pipx_metadata.json").exists():
        return f"pipx install --force {requirement({extra, *beside})}"
    if of_uvx() or (Path(sys.prefix) / "uv-receipt.toml").exists():
        return f"uv tool install {requirement({extra, *beside})}"
    return f"pip install {requirement({extra})}"


def requirement(extras: Collection[str]) -> str:
    """Write what is installed with these extras, quoted for the shell."""
    return f"'fedprivacy[{','.join(sorted(extras))}]'" if extras else "fedprivacy"


def of_uvx() -> bool:
    """Return whether `uvx` runs this program: its environment is in uv's cache, where no shell finds its programs."""
    return "archive-v0" in Path(sys.prefix).parts
