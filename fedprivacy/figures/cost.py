"""Figure of where privacy loss was spent: the growth of every client's epsilon, round by round."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from fedprivacy._support.altair import alt
from fedprivacy.figures.axes import label_step, shortened
from fedprivacy.figures.observations import cost_rows
from fedprivacy.figures.run import check_private
from fedprivacy.figures.style import COSTS, GRID, PAPER, WIDTH, Rows, chart_of, layered, seen, styled, titled
from fedprivacy.values.series import CostMap, RunFacts
from fedprivacy.values.wording import count_text, epsilon_text

MOST_ROWS = 60
"""Maximum number of clients in a figure; of more, the first."""

ROW, ROOM, CLASS = 16, 100, 70
"""Height of a client's row, in which a name fits, room of the names beside the plot, and width of a class of growths in
the legend, in px."""


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
    check_private(facts)
    if not cost.client_ids or not cost.first:
        raise ValueError("the run has no finished round to draw; wait for its first.")
    clients = cost.client_ids[:MOST_ROWS]
    cells = _cells(cost, clients)
    names = chart_of([{"row": place, "name": shortened(name)} for place, name in enumerate(clients)])
    layers = [
        _boxes([cell for cell in cells if not cell["growth"] > 0.0], cost, width).encode(alt.ColorValue(GRID)),
        _boxes([cell for cell in cells if cell["growth"] > 0.0], cost, width).encode(_colour(cost, width)),
        names.mark_text(align="right", fontSize=12).encode(_row(cost), alt.XValue(-8), alt.Text("name:N")),
    ]
    return styled(layered(layers, _title(cost, cells, facts, width), width, ROW * len(clients)))


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
        for row in cost_rows(cost)
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


def _colour(cost: CostMap, width: int) -> alt.Color:
    longest = max(last - first + 1 for first, last in zip(cost.first, cost.last, strict=True))
    title = "growth of ε per round" if longest == 1 else f"growth of ε per column of up to {longest} rounds"
    columns = (width + ROOM) // CLASS
    legend = alt.Legend(title=title, orient="bottom", columns=columns, symbolType="square", titleLimit=width + ROOM)
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


def _title(cost: CostMap, cells: Rows, facts: RunFacts, width: int) -> alt.TitleParams:
    known = count_text(len(cost.client_ids), "client")
    clients = f"the first {MOST_ROWS} of {known}" if len(cost.client_ids) > MOST_ROWS else known
    what = [*seen("growth of each one's ε", facts.delta), "over all runs"]
    return titled(_dearest(cells), [[clients], what, ["grey: none", "empty: unknown"]], width + ROOM)


def _dearest(cells: Rows) -> str:
    """Name the cell with the largest growth."""
    cell = max(cells, key=lambda cell: cell["growth"], default=None)
    if cell is None or not cell["growth"] > 0.0:
        return "No client's ε grew"
    noun = "rounds" if " to " in cell["rounds"] else "round"
    return f"ε grew most by {cell['grown']}: {shortened(cell['client'])} in {noun} {cell['rounds']}"
