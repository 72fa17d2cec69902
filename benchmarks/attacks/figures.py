"""Figures of attacks: the members that an attack finds, and what an update reveals about a record.

A curve is identified by its colour, its dashes and its name; the limit that privacy sets is a thin line of the same
colour. A picture is drawn in shades of one ink, so that everybody can read it on any page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprivacy.figures.attacks import SIDE, guessing, rates_line
from fedprivacy.figures.axes import BESIDE_LABEL
from fedprivacy.figures.comparison import DASHES
from fedprivacy.figures.style import INK, MUTED, RUNS, chart_of, layer, make_title, with_style

MOST_CURVES = len(RUNS)

_POINTS = 400
"""Number of points of a curve in a figure, evenly spaced on its logarithmic axis."""

_ROW, _SWATCH, _KEY_ROOM = 36, 30, 210
"""Height of an entry of the key, length of its line, and room of the key beside the plot, in px."""

_TITLES = "others taken for members", "members found"
"""Titles of the two axes."""

_WORDS = 44
"""Height of a picture's name and note below it, in px."""


@dataclass(frozen=True, slots=True, eq=False)
class AttackCurve:
    """A measured membership attack, and the limit that privacy sets.

    Attributes:
        name: name of the attack, or of its target.
        false_positive_rates: share of non-members taken for members, never decreasing, shape [thresholds].
        true_positive_rates: share of members that are found, the same shape.
        note: text below the name, for example the area under the curve.
        limit: largest true positive rate that privacy allows at each of `limit_at`; None: there is no promise.
        limit_at: false positive rates, ascending, shape [points].
    """

    name: str
    false_positive_rates: ArrayLike
    true_positive_rates: ArrayLike
    note: str = ""
    limit: ArrayLike | None = None
    limit_at: ArrayLike = ()


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A grey-scale image, shape [height, width], 0 is paper and 1 is ink; with its name and a note below it."""

    name: str
    shades: ArrayLike
    note: str = ""


def roc_figure(
    curves: Sequence[AttackCurve], title: str, about: Sequence[str], *, least: float = 1e-3, width: int = SIDE
) -> alt.LayerChart:
    """Draw the members that attacks find against their false alarms, on logarithmic axes, where few alarms count.

    Args:
        curves: 1 to 8 curves.
        title: sentence that states what the figure shows.
        about: phrases that name the target of the attacks.
        least: smallest rate shown on both axes.
        width: width of the plot between its axes, in px.

    Raises:
        ValueError: there are fewer or more curves.
    """
    if not 1 <= len(curves) <= MOST_CURVES:
        raise ValueError(f"{len(curves)} curves are given; give 1 to {MOST_CURVES}.")
    grid = np.logspace(np.log10(least), 0.0, _POINTS)
    layers = [guessing(least, _TITLES)]
    for place, curve in enumerate(curves):
        colour = RUNS[place]
        if curve.limit is not None:
            allowed = rates_line(
                grid, np.interp(grid, np.asarray(curve.limit_at), np.asarray(curve.limit)), least, _TITLES
            )
            layers.append(allowed.mark_line(color=colour, strokeWidth=1.2))
        measured = rates_line(grid, _step(curve, grid), least, _TITLES)
        layers.append(measured.mark_line(color=colour, strokeDash=DASHES[place], strokeCap="butt"))
    layers += _key(curves, width)
    return with_style(layer(layers, make_title(title, [about, _explained(curves)], width + _KEY_ROOM), width, width))


def _explained(curves: Sequence[AttackCurve]) -> list[str]:
    limits = ["thin: the most that differential privacy allows"] if any(c.limit is not None for c in curves) else []
    return [*limits, "grey: guessing"]


def _step(curve: AttackCurve, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the most members found with at most each rate of false alarms: nothing between two thresholds counts."""
    alarms, found = np.asarray(curve.false_positive_rates), np.asarray(curve.true_positive_rates)
    places = np.searchsorted(alarms, grid * (1.0 + 1e-12), side="right") - 1
    return np.where(places >= 0, found[np.maximum(places, 0)], 0.0)


def _key(curves: Sequence[AttackCurve], width: int) -> list[alt.Chart]:
    """Draw a sample of each curve's line beside the plot, with its name and its note."""
    layers = []
    for place, curve in enumerate(curves):
        height = _ROW * place + 8
        left = width + BESIDE_LABEL
        base = chart_of([{"name": curve.name, "note": curve.note}])
        swatch = base.mark_rule(color=RUNS[place], strokeDash=DASHES[place], strokeWidth=2.5)
        layers.append(swatch.encode(alt.XValue(left), alt.X2Value(left + _SWATCH), alt.YValue(height)))
        texts = left + _SWATCH + 8
        layers.append(
            base.mark_text(fontWeight="bold").encode(alt.XValue(texts), alt.YValue(height), alt.Text("name:N"))
        )
        note = base.mark_text(color=MUTED, fontSize=12)
        layers.append(note.encode(alt.XValue(texts), alt.YValue(height + 15), alt.Text("note:N")))
    return layers


def picture_figure(pictures: Sequence[Picture], title: str, about: Sequence[str], *, side: int = 168) -> alt.LayerChart:
    """Draw grey-scale images in a row, each with its name and a note below it.

    Args:
        pictures: pictures, at least one.
        title: sentence that states what the figure shows.
        about: phrases that name the source of the images.
        side: side of an image, in px.

    Raises:
        ValueError: there is none.
    """
    if not pictures:
        raise ValueError("no picture is given, and there is nothing to draw.")
    gap = side // 6
    width = len(pictures) * (side + gap) - gap
    layers = []
    for place, picture in enumerate(pictures):
        left = place * (side + gap)
        shades = np.asarray(picture.shades, dtype=np.float64)
        layers += [_pixels(shades, left, side, width), *_words(picture, left, side)]
    return with_style(layer(layers, make_title(title, [about], width), width, side + _WORDS))


def _pixels(shades: NDArray[np.float64], left: float, side: int, width: int) -> alt.Chart:
    """Draw a square for each pixel; a screen reader gets one picture and no words for single pixels."""
    height = side + _WORDS
    size = side / max(shades.shape)
    rows = [
        {"left": left + x * size, "right": left + (x + 1) * size, "top": y * size, "bottom": (y + 1) * size, "ink": ink}
        for y, line in enumerate(np.clip(shades, 0.0, 1.0).round(3).tolist())
        for x, ink in enumerate(line)
    ]
    ink = alt.FillOpacity("ink:Q", legend=None).scale(domain=[0.0, 1.0], range=[0.0, 1.0])
    across = alt.X("left:Q").axis(None).scale(domain=[0, width], nice=False)
    down = alt.Y("top:Q").axis(None).scale(domain=[height, 0], nice=False)
    pixels: alt.Chart = chart_of(rows).mark_rect(aria=False, color=INK)
    return pixels.encode(across, down, ink, alt.X2("right"), alt.Y2("bottom"))


def _words(picture: Picture, left: float, side: int) -> list[alt.Chart]:
    """Draw a frame, and below it the name and the note."""
    base = chart_of([{"name": picture.name, "note": picture.note}])
    frame = base.mark_rect(filled=False, color=MUTED)
    box = alt.XValue(left), alt.X2Value(left + side), alt.YValue(0), alt.Y2Value(side)
    name = base.mark_text(fontWeight="bold").encode(alt.XValue(left), alt.YValue(side + 16), alt.Text("name:N"))
    note = base.mark_text(color=MUTED, fontSize=12).encode(alt.XValue(left), alt.YValue(side + 34), alt.Text("note:N"))
    return [frame.encode(*box), name, note]
