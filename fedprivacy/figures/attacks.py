"""Figures of attacks: the loss that audits proved beside the accountant's bound, and the most that any attack finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import shorten
from fedprivacy.figures.style import (
    EXHAUSTED,
    MUTED,
    SPENDING,
    WIDTH,
    Rows,
    chart_of,
    layer,
    make_title,
    outlined_texts,
    with_style,
)
from fedprivacy.values.runs import AuditResult, Verdict
from fedprivacy.values.wording import count_text, delta_text, epsilon_text, proved_text

MOST_AUDITS = 12
"""Maximum number of audits in a figure: failed ones first, then the latest."""

ROW, MARGIN, CHARACTER = 78, 60, 7.0
"""Height of an audit (name, conditions, two bounds), the bounds' distance from the edges (their numbers stand there),
and the mean width of a character of its name, in px."""

_VERDICTS = [Verdict.CONSISTENT.value, Verdict.VIOLATED.value]
_COLOUR = alt.Color("verdict:N", legend=None).scale(domain=_VERDICTS, range=[SPENDING, EXHAUSTED])
_SHAPE = alt.Shape("verdict:N", legend=None).scale(domain=_VERDICTS, range=["circle", "diamond"])


def audit_figure(audits: Sequence[AuditResult], about: str, width: int = WIDTH) -> alt.LayerChart:
    """Draw, for each audit, the epsilon that the attack proved and the epsilon that the accountant states.

    Args:
        audits: audits, at least one; of more than `MOST_AUDITS`, failed ones are shown first, then the latest.
        about: subject of the audits: "run digits-1".
        width: width of the plot, in px.

    Raises:
        ValueError: no audit was made.
    """
    if not audits:
        raise ValueError("no audit of the run was made, and there is nothing to draw.")
    shown = sorted(audits, key=lambda audit: (audit.verdict is Verdict.CONSISTENT, -audit.at))[:MOST_AUDITS]
    finite = [bound for audit in shown for bound in (audit.lower, audit.upper) if math.isfinite(bound)]
    end = max(finite, default=1.0) or 1.0
    rows = [_row(place, audit, end, width) for place, audit in enumerate(shown)]
    height = ROW * len(rows)
    layers = [*_texts(rows, height), *_bounds(rows, end, width, height), *_numbers(rows, end, width, height)]
    return with_style(layer(layers, _title(audits, len(shown), about, width), width, height))


def _row(place: int, audit: AuditResult, end: float, width: int) -> dict[str, Any]:
    """Make the row of an audit, with the distances of its parts from the plot's upper edge, in px."""
    result = "consistent" if audit.verdict is Verdict.CONSISTENT else "VIOLATED"
    name = f"{audit.attack}, {shorten(audit.client_id) or 'the run as a whole'}"
    confidence = f"{100 * audit.confidence:.6g}\N{NO-BREAK SPACE}% confidence"
    return {
        "verdict": audit.verdict.value,
        "lower": audit.lower,
        "upper": min(audit.upper, end),
        "has_bound": math.isfinite(audit.upper),
        "heading": shorten(f"{result}: {name}", int(width / CHARACTER)),
        "conditions": f"{confidence}, δ = {delta_text(audit.delta)}, {audit.accountant}, seen by the {audit.view}",
        "proved": f"≥ {proved_text(audit.lower)}",
        "stated": f"≤ {epsilon_text(audit.upper)}",
        "heading_at": ROW * place + 10,
        "conditions_at": ROW * place + 28,
        "bounds_at": ROW * place + 50,
    }


def _texts(rows: Rows, height: int) -> list[alt.Chart]:
    """Write the subject and the conditions of each audit, from the left edge on."""
    base = chart_of(rows).encode(alt.XValue(0))
    heading = base.mark_text(fontWeight="bold", fontSize=13).encode(_y("heading_at", height), _COLOUR)
    conditions = base.mark_text(color=MUTED, fontSize=12).encode(_y("conditions_at", height))
    return [heading.encode(alt.Text("heading:N")), conditions.encode(alt.Text("conditions:N"))]


def _bounds(rows: Rows, end: float, width: int, height: int) -> list[alt.Chart]:
    """Draw a bar from the proved bound, a disc or a diamond, to the stated one, a stroke; no stroke: no bound."""
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("heading", "conditions", "proved", "stated")]
    base = chart_of(rows).encode(_y("bounds_at", height), _COLOUR, tooltip=tooltip)
    stated = chart_of([row for row in rows if row["has_bound"]]).encode(_y("bounds_at", height), _COLOUR)
    lower, upper = _x("lower", end, width), _x("upper", end, width)
    return [
        base.mark_rule(strokeWidth=5, opacity=0.45).encode(lower, alt.X2("upper")),
        stated.mark_tick(orient="vertical", thickness=4, size=22, opacity=1).encode(upper),
        base.mark_point(size=110).encode(lower, _SHAPE),
    ]


def _numbers(rows: Rows, end: float, width: int, height: int) -> list[alt.Chart]:
    """Write each bound's number on the outer side, so that the two never overlap."""
    numbers = [
        {**row, "epsilon": row[bound], "number": row[text], "left": (row["verdict"] == outer)}
        for row in rows
        for bound, text, outer in (("lower", "proved", Verdict.CONSISTENT), ("upper", "stated", Verdict.VIOLATED))
    ]
    return [
        chart_of([number for number in numbers if number["left"] == left])
        .mark_text(align="right" if left else "left", dx=-12 if left else 12)
        .encode(_x("epsilon", end, width), _y("bounds_at", height), _COLOUR, alt.Text("number:N"))
        for left in (True, False)
    ]


def _x(field: str, end: float, width: int) -> alt.X:
    axis = alt.Axis(tickCount=5, grid=False, domain=True, labelFlush=False)
    scale = alt.Scale(domain=[0.0, end], range=[MARGIN, width - MARGIN], nice=False)
    return alt.X(f"{field}:Q").title("ε").scale(scale).axis(axis)


def _y(field: str, height: int) -> alt.Y:
    return alt.Y(f"{field}:Q").axis(None).scale(domain=[height, 0], nice=False)


def _title(audits: Sequence[AuditResult], shown: int, about: str, width: int) -> alt.TitleParams:
    violated = sum(audit.verdict is Verdict.VIOLATED for audit in audits)
    made = count_text(len(audits), "audit")
    result = f"VIOLATED: {violated} of {made} proved more than is stated"
    left_out = [[f"{shown} of {made} are shown"]] if shown < len(audits) else []
    return make_title(
        result if violated else f"{made}: none proved more than is stated",
        [["≥: ε that an attack proved"], ["≤: ε that the accountant states", about], *left_out],
        width,
    )


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
        layers += [base.mark_point(color=SPENDING), *outlined_texts(base.encode(alt.Text("label:N")), dx=9, dy=9)]
    return with_style(layer(layers, make_title(title, [about, key], width + _AXIS_ROOM), width, width))
