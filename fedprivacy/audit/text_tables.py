"""Plain tables of text, for a terminal and for a notebook's cell."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple


class TextTable(NamedTuple):
    """Rows of cells under heads: every row has as many cells as there are heads."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def as_text(table: TextTable) -> str:
    """The table in columns.

    >>> print(as_text(TextTable(("gate", "verdict"), [("noise", "passed"), ("invariance", "passed")])))
    gate        verdict
    noise       passed
    invariance  passed
    """
    lines = [table.heads, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def as_html(table: TextTable) -> str:
    """The table as HTML; every cell is escaped.

    >>> as_html(TextTable(("gate",), [("<b>",)]))
    '<table><tr><th>gate</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in table.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><tr>{heads}</tr>{rows}</table>"
