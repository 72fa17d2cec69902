"""Table of a terminal, narrow enough for 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def compact_table(title: str | None = None, caption: str | None = None) -> Table:
    """Return a table without a frame; its title and caption begin on the left."""
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    return table
