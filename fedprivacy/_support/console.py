"""Output on a console: tables narrow enough for 80 columns, and progress.

Progress goes to a terminal, to a notebook's cell, or as plain text to a file or a pipe.
"""

from __future__ import annotations

from importlib.util import find_spec
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table


def text_columns(*headings: str) -> list[Column]:
    """Return columns of texts: what has no room goes on in the next line, and is never cut."""
    return [Column(heading, overflow="fold") for heading in headings]


def figure_columns(*headings: str, wrapped: bool = False) -> list[Column]:
    """Return columns of figures, on the right; unless `wrapped`, they and their headings stay on one line."""
    return [Column(heading, justify="right", no_wrap=not wrapped) for heading in headings]


def compact_table(*columns: Column | str) -> Table:
    """Return a table without a frame; its title and caption begin on the left."""
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    return table


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
