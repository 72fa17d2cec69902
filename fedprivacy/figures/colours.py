"""The colours of all figures, on a light page and on a dark one.

Blue is privacy loss that can still grow, vermilion is a spent budget or a broken promise; colour is never the only
sign. The colours of compared runs are the eight of Okabe and Ito (2008), darkened until each stands out from white by
3 to 1 and no two are alike to people who see no red or no green.
"""

from __future__ import annotations

from typing import Any

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#e4e8ec", "#ffffff"
SPENDING, EXHAUSTED = "#0072b2", "#c04a00"

RUNS = (SPENDING, "#b98700", "#006448", "#cb6b91", INK, "#6b2a00", "#0f3763", "#6a6200")
"""Of runs that are compared, in their order: blue, orange, green, purple, black, vermilion, sky blue, yellow."""

COSTS = ("#b5d5ec", "#86bce1", "#559fd0", "#2a80bb", "#0f5f97", "#0a3d63")
"""From a small cost to a large one: one hue, even steps of lightness."""

DARK = {
    INK: "#e6edf3",
    MUTED: "#9da7b3",
    GRID: "#2d343c",
    PAPER: "#12161b",
    SPENDING: "#56b4e9",
    EXHAUSTED: "#f0883e",
    **dict(zip(RUNS[1:4], ("#e69f00", "#00b386", "#cc79a7"), strict=True)),
    **dict(zip(RUNS[5:], ("#c4601a", "#1f7fd0", "#f0e442"), strict=True)),
    **dict(zip(COSTS, ("#1b4a6c", "#24648f", "#3283b8", "#56a2d4", "#8fc8ec", "#d2ecfb"), strict=True)),
}
"""Every colour of the figures, and the one that takes its place on a dark page."""

_TEXTS = frozenset({"text", "subtitle"})
"""Of a title. Together with the data they are what others wrote: a client may be called '#ffffff'."""


def dark(spec: dict[str, Any]) -> dict[str, Any]:
    """A figure for a dark page: its `spec_of` with every colour replaced by that of `DARK`, and no other text."""
    return {key: value if key == "datasets" else _dark(value) for key, value in spec.items()}


def _dark(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: value if key in _TEXTS and isinstance(value, list) else _dark(value) for key, value in part.items()
        }
    if isinstance(part, list):
        return [_dark(value) for value in part]
    return DARK.get(part, part) if isinstance(part, str) else part
