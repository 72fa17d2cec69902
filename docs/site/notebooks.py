"""Makes Jupyter notebooks of the pages in docs/notebooks: a block is a cell with its output, the rest is text.

python docs/site/notebooks.py FOLDER    # needs nothing but Python, and runs nothing
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
PAGES = sorted((DOCS / "notebooks").glob("[1-9]*.md"))

_CELL = re.compile(
    r"```python\n(?P<code>.*?)```\n"
    r"(?:\n```text\n(?P<printed>.*?)```\n)?"
    r"(?:\n!\[(?P<alt>[^\]]*)\]\((?P<drawn>\.\./images/[^)]*\.svg)\)\n)?",
    re.DOTALL,
)
"""A block of code, what it prints, and what it draws."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")

Cell = dict[str, Any]


def notebook(page: Path) -> dict[str, Any]:
    """Return a page as a notebook of format 4.5, with the outputs that the page shows."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [{"id": f"{page.stem}-{number}", **cell} for number, cell in enumerate(_cells(page.read_text()))],
    }


def _cells(text: str) -> Iterator[Cell]:
    begin, count = 0, 0
    for found in _CELL.finditer(text):
        yield from _prose(text[begin : found.start()])
        begin, count = found.end(), count + 1
        yield {
            "cell_type": "code",
            "execution_count": count,
            "metadata": {},
            "source": found["code"].rstrip("\n"),
            "outputs": list(_outputs(found)),
        }
    yield from _prose(text[begin:])


def _prose(text: str) -> Iterator[Cell]:
    if text.strip():
        yield {"cell_type": "markdown", "metadata": {}, "source": _LINK.sub(_named, text.strip())}


def _named(link: re.Match[str]) -> str:
    """Name the page that a link leads to: a notebook lies beside no other page."""
    words, there = link.groups()
    if "://" in there:
        return link.group()
    return f"{words} (`{posixpath.normpath(posixpath.join('docs/notebooks', there))}`)"


def _outputs(found: re.Match[str]) -> Iterator[dict[str, Any]]:
    if found["printed"]:
        yield {"output_type": "stream", "name": "stdout", "text": found["printed"]}
    if found["drawn"]:
        picture = (DOCS / "notebooks" / found["drawn"]).read_text()
        shown = {"image/svg+xml": picture, "text/plain": found["alt"]}
        yield {"output_type": "display_data", "metadata": {}, "data": shown}


def write(folder: Path) -> None:
    """Write every page's notebook into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (folder / f"{page.stem}.ipynb").write_text(json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
