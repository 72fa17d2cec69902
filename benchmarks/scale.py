"""What our simulation costs on ever larger populations of whom equally many train in each round, and its drawing."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import altair as alt

from benchmarks.contenders import OURS, take_turn
from benchmarks.populations import SETTINGS
from fedprivacy.figures.style import RUNS, chart_of, to_svg, with_style

ROUNDS = 3
"""Timed on each population."""

_FIGURES = {
    "update_ms": "ms for a client update",
    "set_up_s": "seconds of set-up",
    "peak_mb": "peak memory, MB",
}
"""What is drawn."""

_WIDTH, _HEIGHT = 220, 200
"""Of each panel, in px."""

Point = Mapping[str, float]
"""The figures of one population, by name."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one population.

    Attributes:
        users: how many there are.
        update_ms: milliseconds of a round for each user of its cohort.
        round_s: seconds of a round.
        set_up_s: seconds before the first round.
        finish_s: seconds after the last.
        peak_mb: memory, see `benchmarks.contenders.Turn`.
    """

    users: int
    update_ms: float
    round_s: float
    set_up_s: float
    finish_s: float
    peak_mb: float


def measure_scale(populations: Iterable[int], cohort: int) -> list[Point]:
    """Our costs of each population of logistic regressions, one after the other.

    Args:
        populations: numbers of users.
        cohort: users that train in a round, where there are as many.
    """
    points: list[Point] = []
    for users in populations:
        print(f"{users} users", file=sys.stderr)
        asked = min(users, cohort)
        turn = take_turn(OURS, replace(SETTINGS["lr"], users=users, cohort=asked), ROUNDS)
        seconds = statistics.median(turn.rounds_s)
        cost = Cost(users, 1e3 * seconds / asked, seconds, turn.set_up_s, turn.finish_s, turn.peak_mb)
        points.append(asdict(cost))
    return points


def report_scale(points: Iterable[Point]) -> None:
    """Print a row for each population."""
    print("   users  ms/update  s/round  set-up, s  finish, s  peak, MB")
    for p in points:
        print(
            f"{p['users']:8.0f} {p['update_ms']:10.2f} {p['round_s']:8.2f} {p['set_up_s']:10.2f} {p['finish_s']:10.2f}"
            f" {p['peak_mb']:9.0f}"
        )


def draw(points: Sequence[Point], cohort: int) -> str:
    """The costs against the number of users, a panel for each, as SVG."""
    panels = [_panel(points, figure, title) for figure, title in _FIGURES.items()]
    title = alt.TitleParams(
        f"What a simulation costs, {cohort:,d} users in each round", subtitle="logistic regression, five local steps"
    )
    return to_svg(with_style(alt.HConcatChart(hconcat=panels, title=title)))


def _panel(points: Sequence[Point], figure: str, title: str) -> alt.LayerChart:
    axis = alt.Axis(values=[point["users"] for point in points], format="~s", grid=False)
    base = chart_of(points).encode(
        alt.X("users:Q").title("users").scale(type="log").axis(axis),
        alt.Y(f"{figure}:Q").title(title).scale(zero=True),
        color=alt.value(RUNS[0]),
    )
    return alt.LayerChart(layer=[base.mark_line(), base.mark_point()], width=_WIDTH, height=_HEIGHT)
