"""Console for progress: a terminal, a notebook's cell, or plain text in a file or a pipe."""

from __future__ import annotations

from importlib.util import find_spec
from io import StringIO
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def console_of(*, shown: bool) -> Console:
    """Return the console for progress: stderr or a notebook's cell, as plain text where no widget can be drawn."""
    if _has_no_widgets():
        return Console(stderr=True, emoji=False, quiet=not shown, force_jupyter=False, force_terminal=False)
    return Console(stderr=True, emoji=False, quiet=not shown)


def bar_on(console: Console, counted: str) -> Progress:
    """Make a live bar for a console: what is counted, how many of how many, a description, and the time left."""
    return Bar(
        TextColumn(f"[bold]{counted}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
    )


class Bar(Progress):
    """A progress bar; in a notebook without widgets, one text that is replaced."""

    def __init__(self, *columns: ProgressColumn, console: Console, transient: bool = False) -> None:
        super().__init__(*columns, console=console, transient=transient)
        if _has_no_widgets() and not console.quiet:
            self.live = _ReplacedText(
                console=console, transient=transient, get_renderable=self.get_renderable, refresh_per_second=2
            )
            self.stop = self.live.stop  # type: ignore[method-assign]  # Rich's own ends the line of a file, too


class _ReplacedText(Live):
    """The output of a notebook's cell: notebooks keep every frame that a terminal would draw over the one before."""

    _output: Any = None

    def refresh(self) -> None:
        """Show what there is now in place of what was shown before."""
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]  # only notebooks have it

        plain = Console(file=StringIO(), emoji=False, width=self.console.width, force_jupyter=False, color_system=None)
        if self._started or not self.transient:
            plain.print(self.renderable)
        shown = {"text/plain": plain.file.getvalue().rstrip()}  # type: ignore[attr-defined]
        if self._output is None:
            self._output = display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)


def _has_no_widgets() -> bool:
    return Console(emoji=False).is_jupyter and find_spec("ipywidgets") is None
