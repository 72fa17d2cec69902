"""Imports that wait until they are asked for, and those of extras: third-party packages that an install may lack.

The package's front doors import each name when it is first asked for, so that a command waits only for what it needs.
Where an extra is missing then, the error names the command that adds it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    if runs_by_uvx() or (Path(sys.prefix) / "uv-receipt.toml").exists():
        return f"uv tool install {requirement({extra, *beside})}"
    return f"pip install {requirement({extra})}"


def requirement(extras: Collection[str]) -> str:
    """Write what is installed with these extras, quoted for the shell."""
    return f"'fedprivacy[{','.join(sorted(extras))}]'" if extras else "fedprivacy"


def runs_by_uvx() -> bool:
    """Return whether `uvx` runs this program: its environment is in uv's cache, where no shell finds its programs."""
    return "archive-v0" in Path(sys.prefix).parts


def when_asked(package: str, *modules: str) -> Callable[[str], Any]:
    """Make a package's `__getattr__` (PEP 562): each name comes from the first module that has it."""

    def find(name: str) -> Any:
        if name in import_module(package).__all__:
            for module in modules:
                home = import_module(f"{package}.{module}")
                if hasattr(home, name):
                    return getattr(home, name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return find


def names_of(package: str) -> Callable[[], list[str]]:
    """Make a package's `__dir__`: all its public names, loaded or not, so that they can be completed."""
    return lambda: list(import_module(package).__all__)


def from_homes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`: each name comes from its own module, and nothing else is imported.

    The function raises a `MissingExtraError` for a name whose module needs an extra that is not installed.

    Args:
        package: its `__name__`.
        homes: the module of each name, without the package's name; "": the name is that of a module.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        with needing_extras():
            home = import_module(f"{package}.{homes[name] or name}")
        return getattr(home, name) if homes[name] else home

    return find
