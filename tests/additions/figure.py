"""A figure: how many updates each round averaged, and how many it asked for in vain."""

from tests.additions.addition import Addition, after

TURNOUT = '''"""How many updates each round averaged, and how many it asked for in vain."""

from __future__ import annotations

import altair as alt

from fedprivacy.figures.axes import PlotFrame, Scale, rounds_axis
from fedprivacy.figures.style import EXHAUSTED, SPENDING, WIDTH, Rows, chart_of, layer, make_title, with_style
from fedprivacy.values.series import RunSeries
from fedprivacy.values.wording import count_text


def turnout_figure(series: RunSeries, width: int = WIDTH) -> alt.LayerChart:
    """Updates that were averaged after every round, and those that were asked for and not used.

    Args:
        series: the run.
        width: of the plot between its axes, in px.

    Raises:
        ValueError: the run has no finished round.
    """
    last, rows = series.last, turnout_rows(series)
    frame = PlotFrame(rounds_axis(last.round), Scale(0.0, 1.1 * max(row["averaged"] + 1 for row in rows)), width)
    chart = chart_of(rows)
    lines = [
        chart.mark_line(color=SPENDING).encode(frame.x, frame.y("averaged")),
        chart.mark_point(color=EXHAUSTED).encode(frame.x, frame.y("failed")),
    ]
    words = [["the server's view", "points: asked for and not used"]]
    title = f"Round {last.round} averaged {count_text(last.participants, 'update')}"
    return with_style(layer(lines, make_title(title, words, width), width))


def turnout_rows(series: RunSeries) -> Rows:
    """Return rows `round`, `averaged`, `failed`: updates that a round averaged, and those it asked for in vain."""
    return [{"round": point.round, "averaged": point.participants, "failed": point.failed} for point in series.points]
'''

ENTRY = """    "turnout": NamedFigure(
        "Updates by round",
        "Averaged, and asked for in vain.",
        lambda run, _, width: turnout_figure(run.series(()), width),
        lambda run, _: turnout_rows(run.series(())),
        private=False,
    ),
"""

FIGURE = Addition(
    edits={
        "fedprivacy/figures/named.py": [
            after(
                "from fedprivacy.figures.style import WIDTH, Rows, to_svg\n",
                "from fedprivacy.figures.turnout import turnout_figure, turnout_rows\n",
            ),
            after("        lambda run, options: observations.cost_rows(run.costs(options.clients)),\n    ),\n", ENTRY),
        ],
    },
    files={("fedprivacy/figures", "turnout.py"): TURNOUT},
)

PROGRAM = """
import pathlib

from fedprivacy.runs.records.run import Run
from tests.figures.reading import drawn, rows, written
from tests.runs.histories import unlike
from tests.runs.store.made_up import facts, finished, spent
from tests.dashboard.shown import asking, record

failures = {("client-2", number): "lost" for number in range(1, 9)}
history = unlike(4, rounds=8, failures=failures)
chart = Run(pathlib.Path(), history).figures.named("turnout").chart
happened = [(one.round, len(one.participants), len(one.failures)) for one in history.rounds]
assert any(failed for _, _, failed in happened) and len({averaged for _, averaged, _ in happened}) > 1
assert [tuple(row.values()) for row in rows(chart, "averaged")] == happened
assert f"Round 8 averaged {happened[-1][1]} update" in written(drawn(chart))

accounts = [spent(name, 0.1) for name in ("a", "b")]
rounds = [finished(0, accounts), finished(1, accounts, failures={"b": "lost"})]
record("sqlite:///ledger.db", facts("few", rounds=1), rounds)
ask = asking(pathlib.Path())
answer = ask.get("/api/v1/runs/few/figures/turnout")
assert answer.status_code == 200 and "Round 1 averaged 1 update" in answer.text, answer.text
print(ask.get("/api/v1/runs/few/figures/turnout.csv").text)
card = ask.get("/api/v1/runs/few").json()["figures"][-1]
print(card["name"], "-", card["title"])
"""
