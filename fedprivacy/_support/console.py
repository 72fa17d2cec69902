"""Where progress is shown: in a terminal, or in a notebook's cell."""

from __future__ import annotations

from importlib.util import find_spec

from rich.console import Console


def console_of(*, shown: bool) -> Console:
    """Where progress goes: to stderr, or into a notebook's cell, as text where nothing there can draw a widget."""
    console = Console(stderr=True, quiet=not shown)
    if console.is_jupyter and find_spec("ipywidgets") is None:
        return Console(stderr=True, quiet=not shown, force_jupyter=False, force_terminal=True)
    return console
