"""The figure of the most that any attack finds, and the logarithmic axes of such figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprivacy._support.altair import alt
from fedprivacy.figures.style import MUTED, SPENDING, chart_of, layered, outlined, styled, titled

SIDE = 380
"""Width and height of the plot in px; it is a square because both axes are rates."""

_AXIS_ROOM = 60
"""Room of the axis beside a plot without a key, in px."""

_ACCUSED = "accused wrongly", "found, at most"
"""Titles of the two axes."""

_TICKS = [10.0**power for power in range(-6, 1)]
_PERCENT = "format(100 * datum.value, '~g') + '\u00a0%'"


def rates_line(
    grid: NDArray[np.float64], rates: NDArray[np.float64], least: float, titles: tuple[str, str]
) -> alt.Chart:
    """Make a line without a mark through rates of true positives, at those of `grid`; from `least` to 1."""
    rows = [{"fpr": x, "tpr": y} for x, y in zip(grid.tolist(), rates.tolist(), strict=True) if y >= least]
    across, up = _axis(alt.X, "fpr", least, titles), _axis(alt.Y, "tpr", least, titles)
    return chart_of(rows).encode(across, up, alt.Order("fpr:Q"))


def _axis(channel: Any, field: str, least: float, titles: tuple[str, str]) -> Any:
    """Make a logarithmic axis from the smallest rate to 1, labelled in percent at the powers of ten."""
    ticks = [tick for tick in _TICKS if tick >= least * (1.0 - 1e-9)]
    scale = alt.Scale(type="log", domain=[least, 1.0], nice=False, clamp=True)
    axis = alt.Axis(values=ticks, labelExpr=_PERCENT, grid=True, labelFlush=False)
    return channel(f"{field}:Q").title(titles[field == "tpr"]).scale(scale).axis(axis)


def guessing(least: float, titles: tuple[str, str]) -> alt.Chart:
    """Draw the dotted line of who guesses."""
    ends = np.array([least, 1.0])
    line: alt.Chart = rates_line(ends, ends, least, titles).mark_line(color=MUTED, strokeWidth=1, strokeDash=[2, 3])
    return line


def limit_figure(
    rates: ArrayLike,
    found: ArrayLike,
    title: str,
    about: Sequence[str],
    *,
    alone: ArrayLike | None = None,
    marked: Sequence[tuple[float, float, str]] = (),
    width: int = SIDE,
) -> alt.LayerChart:
    """Draw the most that any attack finds against its false accusations, on logarithmic axes from 0.1 % to 100 %.

    Args:
        rates: shares accused wrongly, ascending, shape [points].
        found: largest share found at each, the same shape.
        title: sentence that states what the figure shows.
        about: phrases that name what was released.
        alone: share that epsilon and delta alone allow at each, the same shape; None: nothing else is known.
        marked: points of the curve with a label, each (share accused wrongly, share found, label).
        width: width of the plot between its axes, in px.
    """
    least, wrong = 1e-3, np.asarray(rates, dtype=np.float64)
    layers, key = [guessing(least, _ACCUSED)], ["dotted: guessing"]
    if alone is not None:
        layers.append(rates_line(wrong, np.asarray(alone), least, _ACCUSED).mark_line(color=MUTED, strokeWidth=1.2))
        key.insert(0, "thin: what ε and δ alone would allow")
    layers.append(rates_line(wrong, np.asarray(found), least, _ACCUSED).mark_line(color=SPENDING))
    if marked:
        base = chart_of([{"fpr": x, "tpr": y, "label": label} for x, y, label in marked])
        base = base.encode(_axis(alt.X, "fpr", least, _ACCUSED), _axis(alt.Y, "tpr", least, _ACCUSED))
        layers += [base.mark_point(color=SPENDING), *outlined(base.encode(alt.Text("label:N")), dx=9, dy=9)]
    return styled(layered(layers, titled(title, [about, key], width + _AXIS_ROOM), width, width))
