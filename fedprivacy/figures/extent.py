"""Extent of a drawing's texts, with room for readers whose fonts are wider than those that measured it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.etree import ElementTree

_NORMAL, _BOLD = 0.57, 0.63
"""Mean width of a character in em: of DejaVu Sans and Verdana, the widest fonts that browsers fall back to."""

_TEXT = "{http://www.w3.org/2000/svg}text"
_TRANSLATED = re.compile(r"translate\(([-\d.e]+)")
_WIDTH = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 ([\d.]+) ([\d.]+)"(>\s*<rect width="[\d.]+")?')
"""Pattern of the sizes of the drawing, and of the paper under it, if it has one."""


def with_room_for_any_font(svg: str) -> str:
    """Widen a drawing so that its right edge lies beyond the end of every text, however wide its letters are drawn."""
    width = math.ceil(max(_ends(ElementTree.fromstring(svg)), default=0.0))
    return _WIDTH.sub(lambda found: _widened(found, width), svg, count=1)


def _widened(found: re.Match[str], width: int) -> str:
    wide, high = max(width, math.ceil(float(found[1]))), found[2]
    paper = f'><rect width="{wide}"' if found[5] else ""
    return f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"{paper}'


def _ends(element: ElementTree.Element, left: float = 0.0) -> Iterator[float]:
    """Yield the end of each text that begins at its place, in px from the left edge."""
    moved = _TRANSLATED.match(element.get("transform", ""))
    left += float(moved[1]) if moved else 0.0
    if element.tag == _TEXT and element.get("text-anchor") == "start":
        em = (_BOLD if element.get("font-weight") == "bold" else _NORMAL) * float(element.get("font-size", "0px")[:-2])
        yield left + em * max(map(len, element.itertext()), default=0)
    for child in element:
        yield from _ends(child, left)
