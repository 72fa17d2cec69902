"""Packages that import their names when they are first asked for, so that a command waits only for what it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def when_asked(package: str, *modules: str) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562): each name of its `__all__`, from the first of its modules that has it.

    Args:
        package: its `__name__`.
        modules: names of its modules, without the package's.
    """

    def find(name: str) -> Any:
        if name in import_module(package).__all__:
            for module in modules:
                home = import_module(f"{package}.{module}")
                if hasattr(home, name):
                    return getattr(home, name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return find
