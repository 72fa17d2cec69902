"""Every client's privacy loss after every round, against its budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain

import altair as alt

from fedprivacy.figures import curves
from fedprivacy.figures.axes import Frame, Scale, loss_scale, rounds_axis
from fedprivacy.figures.budgets import names_across, rules_across
from fedprivacy.figures.colours import EXHAUSTED, INK, SPENDING
from fedprivacy.figures.labels import BESIDE_LABEL, ROOM, Label, leaders, placed, shortened
from fedprivacy.figures.meaning import COMPOSED, seen
from fedprivacy.figures.style import WIDTH, Rows, chart_of, layered, styled, titled
from fedprivacy.values.series import Curve, RunSeries
from fedprivacy.values.wording import budget_text, count_text, epsilon_text

_COLOURS = {"spending": SPENDING, "exhausted": EXHAUSTED, "chosen": INK}
"""Of lines and labels: of clients that can go on, of those that cannot, of those that can and that somebody chose."""


def epsilon_figure(series: RunSeries, width: int = WIDTH) -> alt.LayerChart:
    """Every client's epsilon after every round, against its budget.

    Clients with the same curve share a line that says how many they are. A fan stands for more different curves than
    `MOST_CURVES`: the range of all clients, their middle half, and the lines of those that spent most, least and the
    median. Clients that somebody chose lie on top, in black.

    Args:
        series: the run.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the run has no finished round.
    """
    return styled(epsilon_panel(series, width))


def epsilon_panel(series: RunSeries, width: int) -> alt.LayerChart:
    """`epsilon_figure` before it is styled: a part of a larger one."""
    frame = Frame(rounds_axis(series.last.round), _scale(series), width)
    lines = [
        rules_across(series.budgets, frame),
        *(_fan(series, frame) if series.curves is None else []),
        _strokes(curves.drawn(series), frame),
        _on_top(series.chosen, frame),
    ]
    marks = [*_ends(curves.drawn(series), SPENDING, frame), *_ends(series.chosen, INK, frame)]
    texts = [*names_across(series.budgets, frame), *_texts(placed(_labels(series), frame), frame)]
    return layered([*lines, *marks, *texts], titled(_title(series), _subtitle(series), width + ROOM), width)


def _scale(series: RunSeries) -> Scale:
    lines = chain.from_iterable(curve.epsilons for curve in (*curves.drawn(series), *series.chosen))
    spreads = chain.from_iterable(asdict(point.epsilons).values() for point in series.points)
    return loss_scale([*lines, *spreads, *series.budgets])


def _title(series: RunSeries) -> str:
    (epsilon, budget), last = series.worst, series.last
    limit = f" of budget {budget_text(budget)}" if math.isfinite(budget) else ", no budget set"
    share = f"all {last.clients}" if last.exhausted == last.clients > 1 else f"{last.exhausted} of {last.clients}"
    noun = "client" if last.clients == 1 else "clients"
    state = f"; {share} {noun} exhausted" if last.exhausted else ""
    return f"Largest privacy loss: ε {epsilon_text(epsilon, budget)}{limit}{state}"


def _subtitle(series: RunSeries) -> list[Sequence[str]]:
    what = [*seen("ε of each client", series.facts.delta), *COMPOSED]
    return [what] if series.curves is not None else [what, _FAN]


_FAN = ("bands: all clients and their middle half", "diamonds: exhausted")


def _strokes(lines: Sequence[Curve], frame: Frame) -> alt.Chart:
    thickness = 2.5 if len(lines) <= 6 else 1.75
    rows = [row for curve in lines for row in curves.strokes(curve)]
    drawn: alt.Chart = chart_of(rows).mark_line(strokeWidth=thickness)
    return drawn.encode(frame.x, frame.y("epsilon"), _colour("state"), detail="part:N")


def _fan(series: RunSeries, frame: Frame) -> list[alt.Chart]:
    """Bands for all clients and for their middle half, the median, and where clients were exhausted."""
    bands = chart_of([{"round": point.round, **asdict(point.epsilons)} for point in series.points]).encode(frame.x)
    return [
        bands.mark_area(color=SPENDING, opacity=0.15).encode(frame.y("least"), y2="most"),
        bands.mark_area(color=SPENDING, opacity=0.25).encode(frame.y("quarter"), y2="three_quarters"),
        bands.mark_line(color=SPENDING, strokeWidth=3).encode(frame.y("median")),
        _diamonds(series.turns, frame),
    ]


def _on_top(chosen: Sequence[Curve], frame: Frame) -> alt.Chart:
    """Black lines, until their budgets are exhausted."""
    rows = [row | {"state": _kind(row["state"], chosen=True)} for curve in chosen for row in curves.strokes(curve)]
    drawn: alt.Chart = chart_of(rows).mark_line(strokeWidth=3.5)
    return drawn.encode(frame.x, frame.y("epsilon"), _colour("state"), detail="part:N")


def _ends(lines: Sequence[Curve], colour: str, frame: Frame) -> list[alt.Chart]:
    """A dot where a client could go on and a diamond where its budget was exhausted."""
    going_on = [curves.points(curve)[-1] for curve in lines if curve.exhausted_in is None]
    dots = chart_of(going_on).mark_point(color=colour).encode(frame.x, frame.y("epsilon"))
    return [dots, _diamonds([curve.turn for curve in lines if curve.turn], frame)]


def _diamonds(turns: Iterable[tuple[int, float]], frame: Frame) -> alt.Chart:
    base = chart_of([{"round": number, "epsilon": epsilon} for number, epsilon in turns])
    diamonds: alt.Chart = base.mark_point(shape="diamond", size=90, color=EXHAUSTED)
    return diamonds.encode(frame.x, frame.y("epsilon"))


def _labels(series: RunSeries) -> list[Label]:
    lines = _edges(series) if series.curves is None else [_label(curve, series) for curve in series.curves]
    return [*lines, *(_label(curve, series) for curve in curves.added(series))]


def _edges(series: RunSeries) -> list[Label]:
    """What is named beside a fan: how many are exhausted, the client that spent most, the median, the least."""
    last, words = series.last, ("most: ", "least: ")
    outer = [_label(curve, series, word) for curve, word in zip(series.outer, words, strict=False)]
    median = Label(f"{epsilon_text(last.epsilons.median)}\N{EN SPACE}median", last.epsilons.median, "spending")
    exhausted = Label(f"{count_text(last.exhausted, 'client')} exhausted", last.epsilons.most, "exhausted")
    return [*([exhausted] if last.exhausted else []), *outer[:1], median, *outer[1:]]


def _label(curve: Curve, series: RunSeries, what: str = "") -> Label:
    """What the curve spent, in a column with the other labels, and whose it is."""
    epsilon, state = curve.epsilons[-1], curves.last_state(curve)
    chosen = any(curve.client_ids == other.client_ids for other in series.chosen)
    ending = " exhausted" if state == "exhausted" else ""
    text = f"{epsilon_text(epsilon, curve.budget)}\N{EN SPACE}{what}{shortened(curves.whose(curve))}{ending}"
    return Label(text, epsilon, _kind(state, chosen=chosen), chosen)


def _texts(rows: Rows, frame: Frame) -> list[alt.Chart]:
    """Labels, in bold for what somebody chose."""
    return [leaders(rows, frame)] + [
        chart_of([row for row in rows if row["emphasised"] == bold])
        .mark_text(fontWeight="bold" if bold else "normal")
        .encode(frame.y("place"), _colour("kind"), x=alt.value(frame.width + BESIDE_LABEL), text="text:N")
        for bold in (False, True)
    ]


def _kind(state: str, *, chosen: bool) -> str:
    return "chosen" if chosen and state == "spending" else state


def _colour(field: str) -> alt.Color:
    return alt.Color(f"{field}:N", legend=None).scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
