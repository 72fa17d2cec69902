"""Console for progress: a terminal, or a notebook's cell."""

from __future__ import annotations

from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def console_of(*, shown: bool) -> Console:
    """Return the console for progress: stderr or a notebook's cell, as plain text where no widget can be drawn."""
    console = Console(stderr=True, quiet=not shown)
    if console.is_jupyter and find_spec("ipywidgets") is None:
        return Console(stderr=True, quiet=not shown, force_jupyter=False, force_terminal=True)
    return console


def bar_on(console: Console, counted: str) -> Progress:
    """Make a live bar for a console: what is counted, how many of how many, a description, and the time left."""
    return Progress(
        TextColumn(f"[bold]{counted}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
    )
