"""Style of all figures, and their conversion to pictures without a browser or a network.

Blue is privacy loss that can still grow, green a budget that was spent as planned, vermilion one that was spent before
its time or a broken promise; colour is never the only sign. The colours of compared runs are the eight of Okabe and Ito
(2008), darkened until each stands out from white by 3 to 1 and no two are alike to people who see no red or no green.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar
from xml.etree import ElementTree

import vl_convert

from fedprivacy._support.altair import alt
from fedprivacy._support.durable import write_durably
from fedprivacy.values.wording import delta_text

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#e4e8ec", "#ffffff"
SPENDING, SPENT, EXHAUSTED = "#0072b2", "#006448", "#c04a00"

RUNS = (SPENDING, "#b98700", SPENT, "#cb6b91", INK, "#6b2a00", "#0f3763", "#6a6200")
"""Colours of compared runs, in their order: blue, orange, green, purple, black, vermilion, sky blue, yellow."""

COSTS = ("#b5d5ec", "#86bce1", "#559fd0", "#2a80bb", "#0f5f97", "#0a3d63")
"""Colours from a small cost to a large one: one hue, even steps of lightness."""

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
"""Replacement of every colour of the figures on a dark page."""

_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Fonts; vl-convert contains the first and measures texts with it, and all but the last have the same width."""

_VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
"""Version of Vega-Lite for which Altair writes figures."""

WIDTH, HEIGHT = 440, 330
"""Width and height of a plot between its axes, in px, unless another width is requested."""

TITLE_CHARACTER, SUBTITLE_CHARACTER = 7.5, 5.9
"""Mean width of a character in px, a little more than measured."""

Rows = list[dict[str, Any]]

Figure = TypeVar("Figure", alt.LayerChart, alt.HConcatChart)


def chart_of(rows: Iterable[Mapping[str, Any]]) -> alt.Chart:
    """Make a chart without marks, its data inside; values that JSON cannot hold (infinity, NaN) become null.

    The rows are one text, which Vega-Lite reads: Altair would copy and check rows as objects at every step, which takes
    ten times as long as everything else.
    """
    finite = [{k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()} for row in rows]
    return alt.Chart(alt.InlineData(values=json.dumps(finite), format=alt.JsonDataFormat(type="json")))


def layer(layers: list[alt.Chart], title: alt.TitleParams, width: int, height: int = HEIGHT) -> alt.LayerChart:
    """Combine layers to one panel; width and height of the plot between its axes, in px."""
    return alt.LayerChart(layer=layers, title=title, width=width, height=height)


def make_title(title: str, clauses: Sequence[Sequence[str]], room: int) -> alt.TitleParams:
    """Make a title and a subtitle, in as many lines as it takes.

    Args:
        title: sentence that states what the figure shows.
        clauses: clauses of the subtitle, each of phrases; a line ends between two phrases if possible.
        room: available width in px.
    """
    lines = textwrap.wrap(title, int(room / TITLE_CHARACTER))
    return alt.TitleParams(lines, subtitle=_fill_lines(clauses, int(room / SUBTITLE_CHARACTER)))


def _fill_lines(clauses: Sequence[Sequence[str]], characters: int) -> list[str]:
    phrases = "\n".join(",\n".join(clause) + ";" for clause in clauses).removesuffix(";")
    lines: list[str] = []
    for phrase in phrases.splitlines():
        if lines and len(lines[-1]) + 1 + len(phrase) <= characters:
            lines[-1] += f" {phrase}"
        else:
            lines += textwrap.wrap(phrase, characters)
    return lines


COMPOSED = ("composed over all rounds and runs", "an odometer's reading")
"""Phrases that explain an epsilon."""


def observer_text(owner: str, *deltas: float) -> list[str]:
    """Describe an epsilon: its owner, its observer, its delta (or deltas, of several runs) and its accountant."""
    shown = " and ".join(delta_text(delta) for delta in sorted(set(deltas)))
    return [f"{owner} as seen by the server", f"δ = {shown}", "PLD accountant"]


def outlined_texts(
    base: alt.Chart, align: Literal["left", "right"] = "left", dx: float = 0, dy: float = 0
) -> list[alt.Chart]:
    """Make bold texts that can be read on any background: each lies on an outline in the colour of the page."""
    bold: dict[str, Any] = {"fontWeight": "bold", "align": align, "dx": dx, "dy": dy}
    outline = base.mark_text(**bold, color=PAPER, stroke=PAPER, strokeWidth=4, aria=False)
    return [outline, base.mark_text(**bold)]


def with_style(chart: Figure) -> Figure:
    """Give the figure the look that all figures share."""
    labels = {"labelColor": MUTED, "labelFontSize": 12}
    words: dict[str, Any] = labels | {"titleColor": MUTED, "titleFontSize": 12, "titleFontWeight": "normal"}
    styled: Figure = chart.configure(
        font=_FONT,
        background=PAPER,
        padding=16,
        view=alt.ViewConfig(stroke=None),
        title=alt.TitleConfig(
            anchor="start",
            color=INK,
            fontSize=16,
            subtitleColor=MUTED,
            subtitleFontSize=12,
            subtitlePadding=5,
            offset=16,
        ),
        axis=alt.AxisConfig(
            domain=False, domainColor=MUTED, gridColor=GRID, tickColor=MUTED, ticks=False, labelPadding=6, **words
        ),
        legend=alt.LegendConfig(**words),
        line=alt.LineConfig(strokeWidth=2.5, strokeCap="round", strokeJoin="round"),
        point=alt.MarkConfig(filled=True, size=55, opacity=1),
        text=alt.MarkConfig(align="left", baseline="middle", color=INK, fontSize=12.5),
    )
    return styled


def spec_of(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the figure as Vega-Lite, for a web page or a file: its rows as objects, under `datasets`."""
    spec = _as_made(chart)
    return spec | {"datasets": {name: json.loads(rows) for name, rows in spec.get("datasets", {}).items()}}


def save_png(chart: alt.TopLevelMixin, path: Path, scale: float = 2.0) -> None:
    """Draw the chart into a PNG file, whole or not at all, with `scale` pixels for each px of the figure."""
    write_durably(path, vl_convert.vegalite_to_png(_as_made(chart), vl_version=_VEGA_LITE, scale=scale))


def to_svg(chart: alt.TopLevelMixin) -> str:
    """Draw the chart as an `<svg>` element. Texts stay texts, and the keys of `DARK` are its only colours."""
    return with_room_for_any_font(vl_convert.vegalite_to_svg(_as_made(chart), vl_version=_VEGA_LITE))


def _as_made(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the figure as Vega-Lite, its rows one text. Altair has checked each part when it was made.

    To check the whole again takes longer than to draw it.
    """
    spec: dict[str, Any] = chart.to_dict(validate=False)
    return spec


def dark(spec: dict[str, Any]) -> dict[str, Any]:
    """Convert a figure for a dark page: its `spec_of` with every colour replaced by that of `DARK`, and no other text.

    The data and a title's texts come from others and are not changed: a client may be called '#ffffff'.
    """
    return {key: value if key == "datasets" else _dark(value) for key, value in spec.items()}


def _dark(part: Any) -> Any:
    if isinstance(part, dict):
        texts = [key for key in ("text", "subtitle") if isinstance(part.get(key), list)]
        return {key: value if key in texts else _dark(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_dark(value) for value in part]
    return DARK.get(part, part) if isinstance(part, str) else part


def for_both_themes(svg: str) -> str:
    """Add the colours of a dark page to a drawing of `to_svg`, for readers who prefer one."""
    rules = "".join(
        f'[{paint}="{light}"]{{{paint}:{dark}}}' for light, dark in DARK.items() for paint in ("fill", "stroke")
    )
    sheet = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    return svg.replace(">", f">{sheet}", 1)


_NORMAL, _BOLD = 0.57, 0.63
"""Mean width of a character in em: of DejaVu Sans and Verdana, the widest fonts that browsers fall back to."""

_TEXT = "{http://www.w3.org/2000/svg}text"
_TRANSLATED = re.compile(r"translate\(([-\d.e]+)")
_WIDTH = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 ([\d.]+) ([\d.]+)"(>\s*<rect width="[\d.]+")?')
"""Pattern of the sizes of the drawing, and of the paper under it, if it has one."""


def with_room_for_any_font(svg: str) -> str:
    """Widen a drawing so that its right edge lies beyond the end of every text, however wide its letters are drawn."""
    width = math.ceil(max(_ends(ElementTree.fromstring(svg)), default=0.0))
    return _WIDTH.sub(lambda found: _widen(found, width), svg, count=1)


def _widen(found: re.Match[str], width: int) -> str:
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
