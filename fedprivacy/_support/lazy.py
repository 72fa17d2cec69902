"""Packages that import their names when they are first asked for, so that a command waits only for what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from fedprivacy._support.extras import needing_extras


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
