"""The picture of the moments accountant: epsilon by step, as each accountant sees it.

Drawn like the figures of a run (`fedprivacy.figures`): blue is the guarantee, grey what others say, dashes what is no
bound. Each line is named where it ends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedprivacy._support.altair import alt
from fedprivacy.commands.calculator.costs import ACCOUNTANTS, Accountant, Worth, cost
from fedprivacy.commands.calculator.trainings import AskingError, TrainingSteps, composed, described, steps_text
from fedprivacy.figures import axes, style
from fedprivacy.values.wording import delta_text, epsilon_text

FORMATS = (".svg", ".png", ".html", ".json")

POINTS = 40
"""Points of a line; as many again lie close to the first step, where the lines are steep."""

_NAMES = {
    "pld": "PLD (guarantee)",
    "rdp": "RDP (moments accountant)",
    "gdp": "GDP (approximation)",
    "advanced": "advanced composition",
    "basic": "basic composition",
}


def draw(trainings: Sequence[TrainingSteps], delta: float, path: Path) -> None:
    """Draw what trainings cost, one after another, into a file of the kind that its name tells.

    Raises:
        AskingError: there is nothing to draw, or the file cannot be written.
    """
    check_format("plot", path)
    if not trainings:
        raise AskingError("the history is empty, and there is nothing to draw; leave out --plot.")
    save("plot", path, figure(trainings, delta))


def check_format(option: str, path: Path) -> None:
    """Refuse a file's name that tells no kind of figure.

    Raises:
        AskingError: it does not end in one of `FORMATS`.
    """
    if path.suffix not in FORMATS:
        raise AskingError(f"{option} is '{path}'; choose a name that ends in one of {', '.join(FORMATS)}.")


def save(option: str, path: Path, chart: alt.LayerChart) -> None:
    """Write a figure into a file of the kind that its name tells.

    Raises:
        AskingError: it cannot be written.
    """
    try:
        _save(chart, path)
    except OSError as error:
        raise AskingError(
            f"{option} is '{path}', which cannot be written ({error.strerror}); choose another."
        ) from error


def figure(trainings: Sequence[TrainingSteps], delta: float) -> alt.LayerChart:
    """Epsilon after every number of steps, on a logarithmic axis.

    Raises:
        AskingError: no accountant finds an epsilon that can be drawn there.
    """
    curves = [curve for a in ACCOUNTANTS.values() if (curve := _Curve.of(a, trainings, delta)).points]
    if not curves:
        raise AskingError(
            "no accountant finds a positive, finite epsilon, and there is nothing to draw; leave out --plot."
        )
    bottom, top = _decades(curves)
    steps = sum(training.steps for training in trainings)
    x = alt.X("steps:Q").title("steps").scale(domain=[0, steps], nice=False)
    x = x.axis(alt.Axis(format=",d", tickCount=5, tickMinStep=1, grid=False, domain=True, labelFlush=False))
    y = _y("epsilon", bottom, top)
    lines = [
        curve.drawn.mark_line(clip=True, **_STROKES[curve.accountant.worth]).encode(x, y)
        for curve in sorted(curves, key=lambda curve: _LAYERS[curve.accountant.worth])
    ]
    title = _title(trainings, curves, steps, delta)
    return style.styled(style.layered([*lines, *_labels(curves, bottom, top)], title, style.WIDTH))


_LAYERS = {Worth.BOUND: 0, Worth.GUARANTEE: 1, Worth.APPROXIMATION: 2}
"""Order of drawing: lines may lie on one another, and dashes let see what is below."""

_STROKES: dict[Worth, dict[str, Any]] = {
    Worth.GUARANTEE: {"color": style.SPENDING, "strokeWidth": 4},
    Worth.BOUND: {"color": style.MUTED, "strokeWidth": 2},
    Worth.APPROXIMATION: {"color": style.INK, "strokeWidth": 1.5, "strokeDash": [4, 6]},
}
_COLOUR = alt.Color("worth:N", legend=None).scale(
    domain=[worth.value for worth in _STROKES], range=[stroke["color"] for stroke in _STROKES.values()]
)


@dataclass(frozen=True, slots=True)
class _Curve:
    """One accountant's epsilons: (steps, epsilon), where they are positive and finite."""

    accountant: Accountant
    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, accountant: Accountant, trainings: Sequence[TrainingSteps], delta: float) -> _Curve:
        """The curve at numbers of steps that show its shape; no points where the accountant finds no end of it."""
        epsilons = [
            (steps, cost(accountant, composed(_first(trainings, steps)), delta).epsilon)
            for steps in _shown(sum(training.steps for training in trainings))
        ]
        points = tuple((steps, epsilon) for steps, epsilon in epsilons if epsilon and math.isfinite(epsilon))
        return cls(accountant, points if points and points[-1] == epsilons[-1] else ())

    @property
    def drawn(self) -> alt.Chart:
        return style.chart_of([{"steps": steps, "epsilon": epsilon} for steps, epsilon in self.points])

    @property
    def last(self) -> float:
        return self.points[-1][1]


def _shown(steps: int) -> list[int]:
    evenly, early = np.linspace(1, steps, POINTS), np.geomspace(1, steps, POINTS)
    return sorted({round(value) for value in [*evenly, *early]})


def _first(trainings: Sequence[TrainingSteps], steps: int) -> list[TrainingSteps]:
    """The first steps of trainings that follow one another."""
    found = []
    for training in trainings:
        found.append(TrainingSteps(training.event, min(steps, training.steps)))
        steps -= found[-1].steps
        if not steps:
            break
    return found


def _decades(curves: Sequence[_Curve]) -> tuple[float, float]:
    """The ends of the y axis: what every line reaches, and far below where the lowest of them ends."""
    top, lowest = max(curve.last for curve in curves), min(curve.last for curve in curves)
    return 10.0 ** math.floor(math.log10(lowest / 4.0)), 10.0 ** min(math.log10(top) + 0.15, 308.0)


def _y(field: str, bottom: float, top: float) -> alt.Y:
    low, high = round(math.log10(bottom)), math.floor(math.log10(top))
    decades = range(low, high + 1, axes.label_step(high - low))
    axis = alt.Axis(values=[10.0**power for power in decades], format="~r" if high < 6 else "~e")
    return alt.Y(f"{field}:Q").title(None).scale(type="log", domain=[bottom, top], nice=False).axis(axis)


def _labels(curves: Sequence[_Curve], bottom: float, top: float) -> list[alt.Chart]:
    """Names on the right, moved apart so that all can be read, each led to its epsilon by a thin line."""
    low, high = math.log10(bottom), math.log10(top)
    gap = (high - low) * axes.LABEL_GAP / style.HEIGHT
    places = axes.spread_apart([math.log10(curve.last) for curve in curves], gap, low + gap / 2, high - gap / 2)
    rows = [
        {
            "epsilon": curve.last,
            "place": 10.0**place,
            "text": f"{epsilon_text(curve.last)}\N{EN SPACE}{_NAMES[curve.accountant.name]}",
            "worth": curve.accountant.worth.value,
        }
        for curve, place in zip(curves, places, strict=True)
    ]
    leaders = style.chart_of(rows).mark_rule(color=style.MUTED, strokeWidth=0.75)
    texts = style.chart_of(rows).mark_text()
    y = _y("epsilon", bottom, top)
    return [
        leaders.encode(y, alt.XValue(style.WIDTH + 7), alt.X2Value(style.WIDTH + 20), alt.Y2("place")),
        texts.encode(_y("place", bottom, top), _COLOUR, alt.XValue(style.WIDTH + 24), alt.Text("text:N")),
    ]


def _title(trainings: Sequence[TrainingSteps], curves: Sequence[_Curve], steps: int, delta: float) -> alt.TitleParams:
    guarantee = next((curve.last for curve in curves if curve.accountant.worth is Worth.GUARANTEE), math.inf)
    relation = trainings[0].event.relation
    what = described(trainings[0]) if len(trainings) == 1 else f"{len(trainings)} trainings, one after another"
    return alt.TitleParams(
        f"After {steps_text(steps)}: ε at most {epsilon_text(guarantee)}",
        subtitle=[
            f"ε by step as seen by the server, δ = {delta_text(delta)}, {relation} relation,",
            f"{what}; dashed: no bound",
        ],
    )


def _save(chart: alt.LayerChart, path: Path) -> None:
    if path.suffix == ".svg":
        path.write_text(style.for_both_themes(style.to_svg(chart)), encoding="utf-8")
    elif path.suffix == ".png":
        style.save_png(chart, path)
    elif path.suffix == ".html":
        path.write_text(chart.to_html(inline=True), encoding="utf-8")
    else:
        path.write_text(json.dumps(style.spec_of(chart), indent=2) + "\n", encoding="utf-8")
