"""Tables of a terminal, narrow enough for 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
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
