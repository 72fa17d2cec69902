"""Figures of one run: its metric, its clients' privacy loss, one against the other, and the remaining rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain

from fedprivacy._support.altair import alt
from fedprivacy.figures import observations
from fedprivacy.figures.axes import (
    AXIS_ROOM,
    Label,
    PlotFrame,
    leaders,
    loss_scale,
    metric_scale,
    names_across,
    names_upright,
    placed,
    rounds_axis,
    rules_across,
    rules_upright,
    shortened,
)
from fedprivacy.figures.style import (
    COMPOSED,
    EXHAUSTED,
    INK,
    SPENDING,
    SPENT,
    WIDTH,
    Rows,
    chart_of,
    layered,
    outlined,
    seen,
    styled,
    titled,
)
from fedprivacy.values.metrics import OF_CLIENTS, OF_EACH, measured_on
from fedprivacy.values.series import Curve, RunFacts, RunSeries
from fedprivacy.values.spent import ClientState
from fedprivacy.values.wording import NO_PRIVACY, budget_text, count_text, epsilon_text, metric_name, metric_text

MOST_DOTS = 100
"""Maximum number of rounds with dots in a trade-off; more are a line without dots."""

LOSS_TITLE = "largest ε of a client"

_COLOURS = {"spending": SPENDING, ClientState.SPENT: SPENT, ClientState.EXHAUSTED: EXHAUSTED, "chosen": INK}
"""Colours of lines and labels: of clients that can go on, of those that cannot, and of active ones that were chosen."""

_ENDS = {ClientState.SPENT: "square", ClientState.EXHAUSTED: "diamond"}
"""Shapes of the ends of budgets, in the order in which they are named."""

_FAN = "bands: all clients and their middle half"


def metric_figure(series: RunSeries, metric: str | None = None, width: int = WIDTH) -> alt.LayerChart:
    """Draw a metric of the global model after every round; in percent if it is an accuracy.

    Args:
        series: the run.
        metric: key of the metric; None: the one that the task shows first.
        width: width of the plot between its axes, in px.

    Raises:
        ValueError: the run has no finished round.
    """
    return styled(_metric_panel(series, metric, width))


def epsilon_figure(series: RunSeries, width: int = WIDTH, *, below: bool = False) -> alt.LayerChart:
    """Draw every client's epsilon after every round, against its budget.

    Clients with the same curve share a line that states their number. More than `MOST_CURVES` different curves become a
    fan: the range of all clients, their middle half, and the lines of those that spent most, least and the median.
    Clients that the user chose lie on top, in black.

    Args:
        series: the run.
        width: width of the plot between its axes, in px.
        below: whether the clients' labels stand below the plot, for narrow screens, instead of beside it.

    Raises:
        ValueError: the run has no finished round, or is a baseline, which has no epsilon.
    """
    check_private(series.facts)
    return styled(_epsilon_panel(series, width, below=below))


def run_figure(series: RunSeries) -> alt.HConcatChart:
    """Draw the run at a glance, about 1200 px wide: `metric_figure` and `epsilon_figure` side by side.

    A baseline has no epsilon, so its metric is drawn alone.
    """
    panels = [_metric_panel(series, None, WIDTH)]
    if series.facts.private:
        panels.append(_epsilon_panel(series, WIDTH))
    lines = max(len(panel.title.subtitle) for panel in panels)
    for panel in panels:  # both titles begin at the same height
        panel.title.subtitle += [""] * (lines - len(panel.title.subtitle))
    return styled(alt.hconcat(*panels, spacing=40))


def tradeoff_figure(series: RunSeries, metric: str | None = None, width: int = WIDTH) -> alt.LayerChart:
    """Draw a metric against the largest epsilon of a client: a dot for each round, joined in their order.

    Arguments and errors are those of `metric_figure`.
    """
    check_private(series.facts)
    metric = metric or series.facts.metric
    title = _tradeoff_title(series, metric, width)
    rows = [row for row in observations.tradeoff_rows(series, metric) if None not in row.values()]
    losses = loss_scale([*(row["epsilon"] for row in rows), *series.budgets])
    values = metric_scale(metric, [row["value"] for row in rows])
    x, y, budget_x = losses.x("epsilon").title(LOSS_TITLE), values.y("value"), losses.x("budget")
    low_end = bool(rows) and rows[-1]["value"] < (values.low + values.high) / 2
    layers = [
        rules_upright(series.budgets, budget_x),
        chart_of(rows).mark_line(color=SPENDING).encode(x, y, alt.Order("round:Q")),
        _dots(rows).encode(x, y),
        *names_upright(series.budgets, budget_x, at_top=low_end),
        *_last(rows, x, y),
    ]
    return styled(layered(layers, title, width))


def check_private(facts: RunFacts) -> None:
    """Refuse to draw the epsilon of a baseline, by a ValueError."""
    if not facts.private:
        raise ValueError(f"{facts.name} has {NO_PRIVACY}: there is no epsilon to draw.")


def _metric_panel(series: RunSeries, metric: str | None, width: int) -> alt.LayerChart:
    metric, last = metric or series.facts.metric, series.last
    measured = [row for row in observations.metric_rows(series, metric) if row["value"] is not None]
    seldom = metric.startswith((OF_CLIENTS, OF_EACH))
    rows = measured if seldom else observations.metric_rows(series, metric)  # measured in some rounds, and joined
    frame = PlotFrame(rounds_axis(last.round), metric_scale(metric, [row["value"] for row in measured]), width)
    line = chart_of(rows).mark_line(color=SPENDING).encode(frame.x, frame.y("value"))
    end = chart_of([row | {"text": metric_text(metric, row["value"])} for row in measured[-1:]])
    end = end.encode(frame.x, frame.y("value"))
    label = end.mark_text(dx=10, fontWeight="bold").encode(alt.Text("text:N"))
    number, reached = last.round, last.metrics.get(metric)
    if seldom:
        number, reached = (measured[-1]["round"], measured[-1]["value"]) if measured else (number, None)
        about = [measured_on(metric), f"{'before' if metric.startswith(OF_CLIENTS) else 'after'} each of these rounds"]
    elif series.facts.asks:
        about = ["noisy answer of all clients together"]
    else:
        about = [measured_on(metric), "after each round"]
    value = metric_text(metric, reached)
    without = "" if series.facts.private else f", {NO_PRIVACY}"
    title = titled(
        f"After {count_text(number, 'round')}: {metric_name(metric)} {value}{without}",
        [[f"task {series.facts.task}", *about]],
        width + AXIS_ROOM,
    )
    return layered([line, end.mark_point(color=SPENDING), label], title, width)


def _epsilon_panel(series: RunSeries, width: int, *, below: bool = False) -> alt.LayerChart:
    drawn = observations.drawn(series)
    lines = chain.from_iterable(curve.epsilons for curve in (*drawn, *series.chosen))
    spreads = chain.from_iterable(asdict(point.epsilons).values() for point in series.points)
    frame = PlotFrame(rounds_axis(series.last.round), loss_scale([*lines, *spreads, *series.budgets]), width, below)
    named = _edges(series) if series.curves is None else [_label(curve, series) for curve in series.curves]
    layers = [
        rules_across(series.budgets, frame),
        *(_fan(series, frame) if series.curves is None else []),
        _strokes(drawn, 2.5 if len(drawn) <= 6 else 1.75, frame),
        _strokes(series.chosen, 3.5, frame, chosen=True),
        *_ends(drawn, SPENDING, frame),
        *_ends(series.chosen, INK, frame),
        *names_across(series.budgets, frame),
        *_texts(placed([*named, *(_label(curve, series) for curve in observations.added(series))], frame), frame),
    ]
    what = [*seen("ε of each client", series.facts.delta), *COMPOSED]
    shapes = (f"{_ENDS[state]}s: {state}" for state in _ended(series))
    subtitle = [what] if series.curves is not None else [what, [_FAN, *shapes]]
    return layered(layers, titled(_epsilon_title(series), subtitle, frame.room), width)


def _epsilon_title(series: RunSeries) -> str:
    (epsilon, budget), last = series.worst, series.last
    limit = f" of budget {budget_text(budget)}" if math.isfinite(budget) else ", no budget set"
    noun = "client" if last.clients == 1 else "clients"
    states = "".join(
        f"; all {state}" if count == last.clients > 1 else f"; {count} of {last.clients} {noun} {state}"
        for state, count in _ended(series).items()
    )
    return f"Largest privacy loss: ε {epsilon_text(epsilon, budget)}{limit}{states}"


def _ended(series: RunSeries) -> dict[ClientState, int]:
    """Number of clients whose budgets allow no further step, by state; states without a client are missing."""
    return {state: series.states[state] for state in _ENDS if state in series.states}


def _fan(series: RunSeries, frame: PlotFrame) -> list[alt.Chart]:
    """Draw bands for all clients and for their middle half, the median, and the points of exhaustion."""
    bands = chart_of([{"round": point.round, **asdict(point.epsilons)} for point in series.points]).encode(frame.x)
    rounds = series.facts.rounds
    by_state = {s: [t for t in series.turns if ClientState.of_budget(t[0], rounds) is s] for s in _ENDS}
    return [
        bands.mark_area(color=SPENDING, opacity=0.15).encode(frame.y("least"), alt.Y2("most")),
        bands.mark_area(color=SPENDING, opacity=0.25).encode(frame.y("quarter"), alt.Y2("three_quarters")),
        bands.mark_line(color=SPENDING, strokeWidth=3).encode(frame.y("median")),
        *(_ending(state, turns, frame) for state, turns in by_state.items()),
    ]


def _strokes(lines: Sequence[Curve], thickness: float, frame: PlotFrame, *, chosen: bool = False) -> alt.Chart:
    """Draw lines, each of a growing part and, from exhaustion on, a flat part; both share the point between them."""
    rows = []
    for curve in lines:
        points = observations.points(curve)
        if curve.turn is not None:
            number, epsilon = curve.turn
            points.insert(curve.rounds.index(number), {"round": number, "epsilon": epsilon, "state": "spending"})
        for point in points:
            part = f"{point['state']} {curve.client_ids[0]}"
            rows.append(point | {"state": _kind(point["state"], chosen=chosen), "part": part})
    strokes: alt.Chart = chart_of(rows).mark_line(strokeWidth=thickness)
    return strokes.encode(frame.x, frame.y("epsilon"), _colour("state"), alt.Detail("part:N"))


def _ends(lines: Sequence[Curve], colour: str, frame: PlotFrame) -> list[alt.Chart]:
    """Draw a dot where a client could go on, and the shape of its budget's end where it could not."""
    going_on = [observations.points(curve)[-1] for curve in lines if curve.exhausted_in is None]
    dots = chart_of(going_on).mark_point(color=colour).encode(frame.x, frame.y("epsilon"))
    by_state = {state: [curve.turn for curve in lines if curve.turn and curve.state is state] for state in _ENDS}
    return [dots, *(_ending(state, turns, frame) for state, turns in by_state.items())]


def _ending(state: ClientState, turns: Iterable[tuple[int, float]], frame: PlotFrame) -> alt.Chart:
    base = chart_of([{"round": number, "epsilon": epsilon} for number, epsilon in turns])
    marks: alt.Chart = base.mark_point(shape=_ENDS[state], size=90, color=_COLOURS[state])
    return marks.encode(frame.x, frame.y("epsilon"))


def _edges(series: RunSeries) -> list[Label]:
    """Label a fan: number of clients in each end, the client that spent most, the median, the one that spent least."""
    last, words = series.last, ("most: ", "least: ")
    outer = [_label(curve, series, word) for curve, word in zip(series.outer, words, strict=False)]
    median = Label(f"{epsilon_text(last.epsilons.median)}\N{EN SPACE}median", last.epsilons.median, "spending")
    ended = _ended(series).items()
    ends = [Label(f"{count_text(count, 'client')} {state}", last.epsilons.most, state) for state, count in ended]
    return [*ends, *outer[:1], median, *outer[1:]]


def _label(curve: Curve, series: RunSeries, prefix: str = "") -> Label:
    """Label a curve with its epsilon, aligned with the other labels, and with its client or number of clients."""
    names, epsilon = curve.client_ids, curve.epsilons[-1]
    state = "spending" if curve.exhausted_in is None else curve.state
    ending = f" {state}" if state == ClientState.EXHAUSTED else ""  # the title has the others, which are as planned
    chosen = any(names == other.client_ids for other in series.chosen)
    owner = names[0] if len(names) == 1 else count_text(len(names), "client")
    text = f"{epsilon_text(epsilon, curve.budget)}\N{EN SPACE}{prefix}{shortened(owner)}{ending}"
    return Label(text, epsilon, _kind(state, chosen=chosen), chosen)


def _texts(rows: Rows, frame: PlotFrame) -> list[alt.Chart]:
    """Draw labels, in bold for those that the user chose."""
    return leaders(rows, frame) + [
        chart_of([row for row in rows if row["emphasised"] == bold])
        .mark_text(fontWeight="bold" if bold else "normal")
        .encode(frame.y("place"), _colour("kind"), alt.XValue(frame.labels_begin), alt.Text("text:N"))
        for bold in (False, True)
    ]


def _kind(state: str, *, chosen: bool) -> str:
    return "chosen" if chosen and state == "spending" else state


def _colour(field: str) -> alt.Color:
    return alt.Color(f"{field}:N", legend=None).scale(domain=list(_COLOURS), range=list(_COLOURS.values()))


def _tradeoff_title(series: RunSeries, metric: str, width: int) -> alt.TitleParams:
    last, name = series.last, metric_name(metric)
    values = [point.metrics[metric] for point in series.points if metric in point.metrics]
    value = metric_text(metric, values[-1] if values else None)
    against = seen("against the largest ε of a client", series.facts.delta)
    title = f"After {count_text(last.round, 'round')}: {name} {value} for ε {epsilon_text(*series.worst)}"
    what = f"{name} after each round, {measured_on(metric)}"
    return titled(title, [[what, *against, *COMPOSED]], width + AXIS_ROOM)


def _dots(rows: Rows) -> alt.Chart:
    """Draw one dot a round while there is room, and always the last."""
    shown = [
        row | {"loss": epsilon_text(row["epsilon"]), "reached": metric_text(row["metric"], row["value"])}
        for row in (rows if len(rows) <= MOST_DOTS else rows[-1:])
    ]
    named = {"round:Q": "round", "loss:N": LOSS_TITLE, "reached:N": "then reached"}
    dots: alt.Chart = chart_of(shown).mark_point(color=SPENDING, size=30)
    return dots.encode(tooltip=[alt.Tooltip(field, title=name) for field, name in named.items()])


def _last(rows: Rows, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Write the name of the last round above it: on the left of a line that rises, on the right of one that falls."""
    last = chart_of([row | {"text": f"round {row['round']}"} for row in rows[-1:]]).encode(x, y, alt.Text("text:N"))
    falls = bool(rows) and rows[-1]["value"] < rows[0]["value"]
    return outlined(last, align="left" if falls else "right", dx=8 if falls else -8, dy=-10)
