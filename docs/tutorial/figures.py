"""Draws the tutorial's figures, each of what its page's own code computed.

python docs/tutorial/figures.py docs/images    # two minutes: the averaging attack asks more than a thousand times
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from fedprivacy.figures.axes import BESIDE_LABEL, DASHES, LABEL_GAP
from fedprivacy.figures.style import (
    EXHAUSTED,
    INK,
    MUTED,
    SPENDING,
    WIDTH,
    chart_of,
    layer,
    make_title,
    outlined_texts,
    with_style,
)

LABELS = 170
"""Room beside the plot, in px."""

DASHED: dict[str, Any] = {"color": INK, "strokeDash": DASHES, "strokeCap": "butt"}

Names = Mapping[str, Any]
"""What a page's code has defined, by name."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From where to where an axis goes, and at which numbers it is labelled; None: at round ones."""

    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None

    @property
    def scale(self) -> dict[str, Any]:
        """For Altair."""
        return {"domain": [self.low, self.high], "nice": False} | ({"type": "log"} if self.log else {})

    @property
    def labels(self) -> dict[str, Any]:
        """For Altair."""
        return {"format": "~r"} | ({"values": self.ticks} if self.ticks else {"tickCount": 5})


@dataclass(slots=True)
class Plot:
    """A plot that grows: lines, and texts that name them. The title of the x axis says what it is; the figure's, y.

    Attributes:
        title: a sentence that says what the figure shows.
        about: phrases that say what was computed.
        name: of the x axis.
        across, up: the axes.
        layers: what is drawn so far.
    """

    title: str
    about: Sequence[str]
    name: str
    across: Axis
    up: Axis
    layers: list[alt.Chart] = field(default_factory=list)

    def line(self, xs: Iterable[float], ys: Iterable[float], *, dots: bool = False, **look: Any) -> None:
        """Points that are joined, those below the plot left out."""
        points = [{"x": float(x), "y": float(y)} for x, y in zip(xs, ys, strict=True) if y >= self.up.low]
        base = chart_of(points).encode(self._x, self._y)
        self.layers += [base.mark_line(**look)] + [base.mark_point(color=look["color"])] * dots

    def level(self, y: float) -> None:
        """A dashed line across the plot."""
        self.layers.append(chart_of([{"y": y}]).mark_rule(strokeDash=DASHES, color=INK).encode(self._y))

    def upright(self, x: float, low: float, high: float) -> None:
        """A bar between two heights."""
        bar = chart_of([{"x": x, "y": low, "top": high}]).mark_rule(color=EXHAUSTED, strokeWidth=3)
        self.layers.append(bar.encode(self._x, self._y, y2="top"))

    def point(self, x: float, y: float) -> None:
        """A diamond: here something ends."""
        mark = chart_of([{"x": x, "y": y}]).mark_point(color=EXHAUSTED, shape="diamond", size=110)
        self.layers.append(mark.encode(self._x, self._y))

    def note(self, text: str, at: tuple[float, float], colour: str = INK, **moved: Any) -> None:
        """A text inside the plot, `moved` by so many px from a point."""
        base = chart_of([{"x": at[0], "y": at[1], "text": text}]).encode(self._x, self._y, text="text:N")
        under, over = outlined_texts(base, **moved)
        self.layers += [under, over.encode(color=alt.value(colour))]

    def beside(self, text: str, y: float, colour: str, dy: float = 0.0) -> None:
        """A text right of the plot, at the height where a line ends."""
        base = chart_of([{"y": y, "text": text}]).mark_text(color=colour, fontWeight="bold", dy=dy)
        self.layers.append(base.encode(self._y, x=alt.value(WIDTH + BESIDE_LABEL / 3), text="text:N"))

    def drawn(self) -> alt.LayerChart:
        """The figure."""
        return with_style(layer(self.layers, make_title(self.title, [self.about], WIDTH + LABELS), WIDTH))

    @property
    def _x(self) -> alt.X:
        axis = alt.Axis(grid=False, domain=True, labelFlush=False, **self.across.labels)
        return alt.X("x:Q").title(self.name).scale(**self.across.scale).axis(axis)

    @property
    def _y(self) -> alt.Y:
        return alt.Y("y:Q").title(None).scale(**self.up.scale).axis(alt.Axis(**self.up.labels))


def neighbours(names: Names) -> alt.LayerChart:
    """Page 1: an answer's density with one patient and without her."""
    density, answers, at = names["density"], names["answers"], 176.0
    plot = Plot(
        "No answer is more than e^ε times as likely with Ann as without",
        ["density of the noisy count", "Laplace noise", f"ε = {names['epsilon']:g}"],
        "noisy answer, in patients",
        Axis(155, 185),
        Axis(4e-5, 0.5, log=True, ticks=[0.0001, 0.001, 0.01, 0.1]),
    )
    looks: dict[str, dict[str, Any]] = {"others": DASHED, "everybody": {"color": SPENDING}}
    for who, words in (("others", "without Ann"), ("everybody", "with Ann")):
        densities = density(answers, names[who])
        plot.line(answers, densities, **looks[who])
        plot.beside(f"{words}: {names[who]}", densities[-1], looks[who]["color"])
    low, high = density(at, names["others"]), density(at, names["everybody"])
    plot.upright(at, low, high)
    plot.note(f"e^ε = {high / low:.2f} times", (at, high), EXHAUSTED, dx=8, dy=-8)
    return plot.drawn()


def bounds(names: Names) -> alt.LayerChart:
    """Page 2: the error of a mean by the upper bound."""
    highs, error, cut = (names[name].tolist() for name in ("highs", "error", "cut"))
    plot = Plot(
        "Too narrow cuts values, too wide drowns them",
        ["error of the mean radius of 455 biopsies", "lower bound 5", "noise multiplier 10"],
        "upper bound of the radius",
        Axis(10, 1000, log=True, ticks=[10, 20, 50, 100, 200, 500, 1000]),
        Axis(0.01, 40, log=True, ticks=[0.01, 0.1, 1, 10]),
    )
    plot.line(highs, cut, **DASHED)
    plot.line(highs, error, dots=True, color=SPENDING)
    best = error.index(min(error))
    plot.note("without noise: what is cut", (highs[best], cut[best]), dx=16, dy=6)
    plot.note(f"{error[best]:.2f} at a bound of {highs[best]}", (highs[best], error[best]), SPENDING, dx=16, dy=12)
    plot.beside(f"{error[-1]:.0f} at a bound of 1000", error[-1], SPENDING)
    return plot.drawn()


def composition(names: Names) -> alt.LayerChart:
    """Page 3: epsilon by number of answers, three ways."""
    curves = names["curves"]
    plot = Plot(
        f"What {names['times'][-1]:,} answers cost: {curves['exact'][-1]:.1f}, and not {curves['basic'][-1]:.0f}",
        ["ε of all answers together", f"each has ε = {names['one']:g} alone", "Laplace noise", "δ = 1e-5"],
        "answers",
        Axis(1, 1000, log=True, ticks=[1, 10, 100, 1000]),
        Axis(0.08, 140, log=True, ticks=[0.1, 1, 10, 100]),
    )
    looks: dict[str, dict[str, Any]] = {"basic": {"color": MUTED, "strokeWidth": 2}, "advanced": DASHED}
    for name, look in (looks | {"exact": {"color": SPENDING, "strokeWidth": 4}}).items():
        plot.line(names["times"], curves[name], **look)
        plot.beside(f"{curves[name][-1]:.1f}\N{EN SPACE}{name}", curves[name][-1], look["color"])
    return plot.drawn()


def averaging(names: Names) -> alt.LayerChart:
    """Page 3: what the averaging attacker believes, see `simulations/averaging.py`."""
    of = names["script"]
    truth, without, within = of["truth"], *map(of["running_means"], (of["without"], of["within"]))
    plot = Plot(
        "The mean of noisy answers runs into the truth, unless somebody counts",
        ["mean of the answers so far, in patients", "each with noise of standard deviation 10"],
        "answers",
        Axis(1, len(without), log=True, ticks=[1, 10, 100, 1000]),
        Axis(truth - 12, truth + 12),
    )
    shown = sorted({round(len(without) ** (place / 240)) for place in range(241)})
    plot.level(truth)
    plot.line(shown, [without[number - 1] for number in shown], color=SPENDING)
    plot.line(range(1, len(within) + 1), within, color=EXHAUSTED)
    plot.point(len(within), within[-1])
    plot.note(f"budget {of['BUDGET']:g}: refused after {len(within)}", (len(within), within[-1]), EXHAUSTED, dy=-46)
    plot.beside(f"{without[-1]:.1f}\N{EN SPACE}nobody refuses", truth, SPENDING, dy=-LABEL_GAP / 2)
    plot.beside(f"{truth}\N{EN SPACE}the truth", truth, INK, dy=LABEL_GAP / 2)
    return plot.drawn()


def suppression(names: Names) -> alt.LayerChart:
    """Page 4: with which probability a count is told, by the true count."""
    plot = Plot(
        "Not told is an answer, too",
        ["probability that a count is told", "smallest cohort 10", "noise of standard deviation 4"],
        "true count",
        Axis(0, 20),
        Axis(0, 1.05),
    )
    for rule, colour in (("by_truth", EXHAUSTED), ("by_noise", SPENDING)):
        plot.line(names["counts"], names[rule], dots=True, color=colour)
    plot.note("by the truth", (9.5, 0.5), EXHAUSTED, align="right", dx=-12, dy=-20)
    plot.note("by the noisy count", (12.0, 0.69), SPENDING, dx=14, dy=4)
    return plot.drawn()


def sampling(names: Names) -> alt.LayerChart:
    """Page 5: epsilon of a training by its sampling rate."""
    rates, epsilons = names["rates"], names["epsilons"]
    plot = Plot(
        "A tenth of the records in each step costs a tenth of epsilon, or less",
        ["ε of 1,000 steps", "noise multiplier 4", "δ = 1e-5", "PLD accountant"],
        "sampling rate",
        Axis(0.001, 1, log=True, ticks=[0.001, 0.01, 0.1, 1]),
        Axis(0.01, 130, log=True, ticks=[0.01, 0.1, 1, 10, 100]),
    )
    plot.line(rates, epsilons, dots=True, color=SPENDING)
    for rate, epsilon in zip(rates, epsilons, strict=True):
        if rate == 1.0:
            plot.beside(f"{epsilon:.1f}\N{EN SPACE}all records", epsilon, SPENDING)
        elif rate in (0.001, 0.01, 0.1):
            plot.note(f"{epsilon:.3f}", (rate, epsilon), SPENDING, dx=10, dy=6)
    return plot.drawn()


def account(names: Names) -> alt.LayerChart:
    """Page 6: epsilon after the questions, and after every round."""
    spent = [0.0, names["after_questions"], *names["after_rounds"]]
    budget = names["settings"]["epsilon"]
    plot = Plot(
        "Questions and training draw on one budget",
        ["ε of each hospital as seen by the server", "δ = 1e-4", "PLD accountant"],
        "releases: the questions, then round by round",
        Axis(0, len(spent) - 1),
        Axis(0, 1.15 * budget),
    )
    plot.level(budget)
    plot.line(range(len(spent)), spent, dots=True, color=SPENDING)
    plot.note(f"budget ε = {budget:g}", (0, budget), dx=4, dy=-10)
    plot.note(f"{spent[1]:.2f} after the questions", (1, spent[1]), dx=8, dy=12)
    plot.beside(f"{spent[-1]:.2f}\N{EN SPACE}after {len(names['after_rounds'])} rounds", spent[-1], SPENDING)
    return plot.drawn()


FIGURES: Mapping[str, tuple[str, Callable[[Names], alt.LayerChart]]] = {
    "tutorial-neighbours": ("1-counting.md", neighbours),
    "tutorial-bounds": ("2-sensitivity.md", bounds),
    "tutorial-composition": ("3-composition.md", composition),
    "tutorial-averaging": ("3-composition.md", averaging),
    "tutorial-suppression": ("4-post-processing.md", suppression),
    "tutorial-sampling": ("5-sampling.md", sampling),
    "tutorial-account": ("6-training.md", account),
}
"""By a picture's name: the page whose code computes it, and what draws it."""
