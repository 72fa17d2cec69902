"""How every figure looks, and how it becomes a picture without a browser and without a network."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TypeVar

import altair as alt

from fedprivacy.figures.colours import GRID, INK, MUTED, PAPER

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""vl-convert carries the first and measures texts with it; the others are as wide."""

WIDTH = 440
"""Of a plot between its axes, in px, unless somebody asks for another."""

HEIGHT = 330
"""Of a plot, in px."""

TITLE_CHARACTER, SUBTITLE_CHARACTER = 7.5, 5.9
"""Mean width of a character in px, a little more than measured."""

Rows = list[dict[str, Any]]

Figure = TypeVar("Figure", alt.LayerChart, alt.HConcatChart)


def chart_of(rows: Iterable[Mapping[str, Any]]) -> alt.Chart:
    """A chart without marks, its data inside; what JSON cannot say (infinity, not a number) is left out of it.

    The rows are one text, which Vega-Lite reads: rows as objects would be copied and checked by Altair at every step,
    which takes ten times as long as everything else.
    """
    finite = [{k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()} for row in rows]
    return alt.Chart(alt.InlineData(values=json.dumps(finite), format=alt.JsonDataFormat(type="json")))


def layered(layers: list[alt.Chart], title: alt.TitleParams, width: int, height: int = HEIGHT) -> alt.LayerChart:
    """Layers as one panel; width and height of the plot between its axes, in px."""
    return alt.LayerChart(layer=layers, title=title, width=width, height=height)


def titled(title: str, clauses: Sequence[Sequence[str]], room: int) -> alt.TitleParams:
    """A title and what it is about, in as many lines as it takes.

    Args:
        title: a sentence that says what the figure shows.
        clauses: of the subtitle, each of phrases; a line ends between two phrases where it can.
        room: in px.
    """
    lines = textwrap.wrap(title, int(room / TITLE_CHARACTER))
    return alt.TitleParams(lines, subtitle=_packed(clauses, int(room / SUBTITLE_CHARACTER)))


def _packed(clauses: Sequence[Sequence[str]], characters: int) -> list[str]:
    phrases = "\n".join(",\n".join(clause) + ";" for clause in clauses).removesuffix(";")
    lines: list[str] = []
    for phrase in phrases.splitlines():
        if lines and len(lines[-1]) + 1 + len(phrase) <= characters:
            lines[-1] += f" {phrase}"
        else:
            lines += textwrap.wrap(phrase, characters)
    return lines


def outlined(
    base: alt.Chart, align: Literal["left", "right"] = "left", dx: float = 0, dy: float = 0
) -> list[alt.Chart]:
    """Bold texts that can be read wherever they stand: each lies on an outline in the colour of the page."""
    outline = base.mark_text(
        fontWeight="bold", align=align, dx=dx, dy=dy, color=PAPER, stroke=PAPER, strokeWidth=4, aria=False
    )
    return [outline, base.mark_text(fontWeight="bold", align=align, dx=dx, dy=dy)]


def styled(chart: Figure) -> Figure:
    """The figure in the look that all figures share."""
    styled: Figure = chart.configure(
        font=FONT,
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
            domain=False,
            domainColor=MUTED,
            gridColor=GRID,
            labelColor=MUTED,
            labelFontSize=12,
            tickColor=MUTED,
            ticks=False,
            labelPadding=6,
            titleColor=MUTED,
            titleFontSize=12,
            titleFontWeight="normal",
        ),
        legend=alt.LegendConfig(
            labelColor=MUTED, labelFontSize=12, titleColor=MUTED, titleFontSize=12, titleFontWeight="normal"
        ),
        line=alt.LineConfig(strokeWidth=2.5, strokeCap="round", strokeJoin="round"),
        point=alt.MarkConfig(filled=True, size=55, opacity=1),
        text=alt.MarkConfig(align="left", baseline="middle", color=INK, fontSize=12.5),
    )
    return styled


def spec_of(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The figure as Vega-Lite, for a web page or a file: its rows as objects, under `datasets`."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    return spec | {"datasets": {name: json.loads(rows) for name, rows in spec.get("datasets", {}).items()}}


def save_png(chart: alt.TopLevelMixin, path: Path, scale: float = 2.0) -> None:
    """Draw the chart into a PNG file, with `scale` pixels for each px of the figure."""
    chart.save(str(path), format="png", scale_factor=scale)


def to_svg(chart: alt.TopLevelMixin) -> str:
    """The chart as an `<svg>` element. Texts stay texts, and the keys of `DARK` are its only colours."""
    drawing = StringIO()
    chart.save(drawing, format="svg")
    return drawing.getvalue()
