"""Figures of one run: its metric, its clients' privacy loss, one against the other, and what each round cost whom."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain

import numpy as np

from fedprivacy._support.altair import alt
from fedprivacy.figures import observations
from fedprivacy.figures.axes import (
    AXIS_ROOM,
    Label,
    PlotFrame,
    label_step,
    leaders,
    loss_scale,
    metric_scale,
    names_across,
    names_upright,
    place_labels,
    rounds_axis,
    rules_across,
    rules_upright,
    shorten,
)
from fedprivacy.figures.style import (
    COMPOSED,
    COSTS,
    EXHAUSTED,
    GRID,
    INK,
    PAPER,
    SPENDING,
    SPENT,
    WIDTH,
    Rows,
    chart_of,
    layer,
    make_title,
    observer_text,
    outlined_texts,
    with_style,
)
from fedprivacy.values.metrics import OF_CLIENTS, OF_EACH, measured_on
from fedprivacy.values.series import CostMap, Curve, RunFacts, RunSeries
from fedprivacy.values.spent import ClientState
from fedprivacy.values.wording import NO_PRIVACY, budget_text, count_text, epsilon_text, metric_name, metric_text

_MOST_DOTS = 100
"""Maximum number of rounds with dots in a trade-off; more are a line without dots."""

LOSS_TITLE = "largest ε of a client"

MOST_ROWS = 60
"""Maximum number of clients in a figure of costs; of more, the first."""

_ROW, _ROOM, _CLASS = 16, 100, 70
"""Height of a client's row in a figure of costs, in which a name fits, room of the names beside the plot, and width of
a class of growths in the legend, in px."""

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
    return with_style(_metric_panel(series, metric, width))


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
    _check_private(series.facts)
    return with_style(_epsilon_panel(series, width, below=below))


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
    return with_style(alt.hconcat(*panels, spacing=40))


def tradeoff_figure(series: RunSeries, metric: str | None = None, width: int = WIDTH) -> alt.LayerChart:
    """Draw a metric against the largest epsilon of a client: a dot for each round, joined in their order.

    Arguments and errors are those of `metric_figure`.
    """
    _check_private(series.facts)
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
    return with_style(layer(layers, title, width))


def cost_figure(cost: CostMap, facts: RunFacts, width: int = WIDTH) -> alt.LayerChart:
    """Draw clients by rounds: the growth of each client's epsilon, darker for more; brighter on a dark page.

    Zero growth is grey; unknown growth is empty.

    Args:
        cost: growth of epsilon; at most `MOST_ROWS` of its clients are shown.
        facts: facts about the run.
        width: width of the plot, in px.

    Raises:
        ValueError: there is no client or no round, or the run is a baseline: it has no epsilon.
    """
    _check_private(facts)
    if not cost.client_ids or not cost.first:
        raise ValueError("the run has no finished round to draw; wait for its first.")
    clients = cost.client_ids[:MOST_ROWS]
    cells = _cells(cost, clients)
    names = chart_of([{"row": place, "name": shorten(name)} for place, name in enumerate(clients)])
    layers = [
        _boxes([cell for cell in cells if not cell["growth"] > 0.0], cost, width).encode(alt.ColorValue(GRID)),
        _boxes([cell for cell in cells if cell["growth"] > 0.0], cost, width).encode(_cost_colour(cost, width)),
        names.mark_text(align="right", fontSize=12).encode(_row(cost), alt.XValue(-8), alt.Text("name:N")),
    ]
    return with_style(layer(layers, _cost_title(cost, cells, facts, width), width, _ROW * len(clients)))


def _check_private(facts: RunFacts) -> None:
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
    title = make_title(
        f"After {count_text(number, 'round')}: {metric_name(metric)} {value}{without}",
        [[f"task {series.facts.task}", *about]],
        width + AXIS_ROOM,
    )
    return layer([line, end.mark_point(color=SPENDING), label], title, width)


def _epsilon_panel(series: RunSeries, width: int, *, below: bool = False) -> alt.LayerChart:
    drawn = observations.drawn_curves(series)
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
        *_texts(
            place_labels([*named, *(_label(curve, series) for curve in observations.added_curves(series))], frame),
            frame,
        ),
    ]
    what = [*observer_text("ε of each client", series.facts.delta), *COMPOSED]
    shapes = (f"{_ENDS[state]}s: {state}" for state in _ended_clients(series))
    subtitle = [what] if series.curves is not None else [what, [_FAN, *shapes]]
    return layer(layers, make_title(_epsilon_title(series), subtitle, frame.room), width)


def _epsilon_title(series: RunSeries) -> str:
    (epsilon, budget), last = series.worst, series.last
    limit = f" of budget {budget_text(budget)}" if math.isfinite(budget) else ", no budget set"
    noun = "client" if last.clients == 1 else "clients"
    states = "".join(
        f"; all {state}" if count == last.clients > 1 else f"; {count} of {last.clients} {noun} {state}"
        for state, count in _ended_clients(series).items()
    )
    return f"Largest privacy loss: ε {epsilon_text(epsilon, budget)}{limit}{states}"


def _ended_clients(series: RunSeries) -> dict[ClientState, int]:
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
    ended = _ended_clients(series).items()
    ends = [Label(f"{count_text(count, 'client')} {state}", last.epsilons.most, state) for state, count in ended]
    return [*ends, *outer[:1], median, *outer[1:]]


def _label(curve: Curve, series: RunSeries, prefix: str = "") -> Label:
    """Label a curve with its epsilon, aligned with the other labels, and with its client or number of clients."""
    names, epsilon = curve.client_ids, curve.epsilons[-1]
    state = "spending" if curve.exhausted_in is None else curve.state
    ending = f" {state}" if state == ClientState.EXHAUSTED else ""  # the title has the others, which are as planned
    chosen = any(names == other.client_ids for other in series.chosen)
    owner = names[0] if len(names) == 1 else count_text(len(names), "client")
    text = f"{epsilon_text(epsilon, curve.budget)}\N{EN SPACE}{prefix}{shorten(owner)}{ending}"
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
    against = observer_text("against the largest ε of a client", series.facts.delta)
    title = f"After {count_text(last.round, 'round')}: {name} {value} for ε {epsilon_text(*series.worst)}"
    what = f"{name} after each round, {measured_on(metric)}"
    return make_title(title, [[what, *against, *COMPOSED]], width + AXIS_ROOM)


def _dots(rows: Rows) -> alt.Chart:
    """Draw one dot a round while there is room, and always the last."""
    shown = [
        row | {"loss": epsilon_text(row["epsilon"]), "reached": metric_text(row["metric"], row["value"])}
        for row in (rows if len(rows) <= _MOST_DOTS else rows[-1:])
    ]
    named = {"round:Q": "round", "loss:N": LOSS_TITLE, "reached:N": "then reached"}
    dots: alt.Chart = chart_of(shown).mark_point(color=SPENDING, size=30)
    return dots.encode(tooltip=[alt.Tooltip(field, title=name) for field, name in named.items()])


def _last(rows: Rows, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Write the name of the last round above it: on the left of a line that rises, on the right of one that falls."""
    last = chart_of([row | {"text": f"round {row['round']}"} for row in rows[-1:]]).encode(x, y, alt.Text("text:N"))
    falls = bool(rows) and rows[-1]["value"] < rows[0]["value"]
    return outlined_texts(last, align="left" if falls else "right", dx=8 if falls else -8, dy=-10)


def _cells(cost: CostMap, clients: tuple[str, ...]) -> Rows:
    """Return the rows of the table, with the place of each."""
    rows = {client_id: place for place, client_id in enumerate(clients)}
    bounds = _bounds(cost)
    classes = _classes(bounds)
    return [
        {
            "client": row["client"],
            "row": rows[row["client"]],
            "begin": row["first_round"] - 0.5,
            "end": row["last_round"] + 0.5,
            "rounds": " to ".join(map(str, sorted({row["first_round"], row["last_round"]}))),
            "class": classes[bisect_left(bounds, row["growth"])],
            "growth": row["growth"],
            "grown": epsilon_text(row["growth"]),
        }
        for row in observations.cost_rows(cost)
        if row["client"] in rows
    ]


def _boxes(cells: Rows, cost: CostMap, width: int) -> alt.Chart:
    """Draw a rectangle for each cell, with a small gap to the next.

    Cells have no words for a screen reader: thousands of them would be useless, and the table holds the same.
    """
    gap = min(1.0, 0.15 * width / len(cost.first))
    tooltip = [alt.Tooltip("client:N"), alt.Tooltip("rounds:N"), alt.Tooltip("grown:N", title="growth of ε")]
    boxes: alt.Chart = chart_of(cells).mark_rect(stroke=PAPER, strokeWidth=gap, aria=False)
    return boxes.encode(_rounds(cost), _row(cost), alt.X2("end"), tooltip=tooltip)


def _row(cost: CostMap) -> alt.Y:
    rows = list(range(min(MOST_ROWS, len(cost.client_ids))))
    return alt.Y("row:O").axis(None).scale(domain=rows, paddingInner=0, paddingOuter=0)


def _rounds(cost: CostMap) -> alt.X:
    """Make an axis from the first round of the first column to the last round of the last."""
    first, last = cost.first[0], cost.last[-1]
    labelled = [number for number in range(0, last + 1, label_step(last - first)) if number >= first]
    axis = alt.Axis(format="d", values=labelled, grid=False)
    return alt.X("begin:Q").title("round").scale(domain=[first - 0.5, last + 0.5], nice=False).axis(axis)


def _cost_colour(cost: CostMap, width: int) -> alt.Color:
    longest = max(last - first + 1 for first, last in zip(cost.first, cost.last, strict=True))
    title = "growth of ε per round" if longest == 1 else f"growth of ε per column of up to {longest} rounds"
    columns = (width + _ROOM) // _CLASS
    legend = alt.Legend(title=title, orient="bottom", columns=columns, symbolType="square", titleLimit=width + _ROOM)
    return alt.Color("class:N").scale(domain=_classes(_bounds(cost)), range=list(COSTS)).legend(legend)


def _classes(bounds: Sequence[float]) -> list[str]:
    return [*(f"≤ {bound:g}" for bound in bounds), f"> {bounds[-1]:g}"]


def _bounds(cost: CostMap) -> list[float]:
    return bounds_below(float(np.max(cost.growth, where=np.isfinite(cost.growth), initial=0.0)))


def bounds_below(largest: float) -> list[float]:
    """Return five numbers of the series 1, 2, 5, 10, 20, ..., the last just below the largest; ascending.

    The first round costs many times as much as a later one, and both must be visible: so steps are not even.
    """
    limit = largest if largest > 0.0 else 1.0
    exponent = math.floor(math.log10(limit))
    series = [digit * 10.0**power for power in range(exponent - 2, exponent + 1) for digit in (1, 2, 5)]
    return [bound for bound in series if bound < limit][-len(COSTS) + 1 :]


def _cost_title(cost: CostMap, cells: Rows, facts: RunFacts, width: int) -> alt.TitleParams:
    known = count_text(len(cost.client_ids), "client")
    clients = f"the first {MOST_ROWS} of {known}" if len(cost.client_ids) > MOST_ROWS else known
    what = [*observer_text("growth of each one's ε", facts.delta), "over all runs"]
    return make_title(_dearest(cells), [[clients], what, ["grey: none", "empty: unknown"]], width + _ROOM)


def _dearest(cells: Rows) -> str:
    """Name the cell with the largest growth."""
    cell = max(cells, key=lambda cell: cell["growth"], default=None)
    if cell is None or not cell["growth"] > 0.0:
        return "No client's ε grew"
    noun = "rounds" if " to " in cell["rounds"] else "round"
    return f"ε grew most by {cell['grown']}: {shorten(cell['client'])} in {noun} {cell['rounds']}"
