"""Every figure can stand in any page, says what its epsilons are, and draws nothing of nothing."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fedprivacy.figures import (
    audit_figure,
    compared_epsilon_figure,
    compared_metric_figure,
    compared_tradeoff_figure,
    cost_figure,
    epsilon_figure,
    limit_figure,
    run_figure,
    to_svg,
    tradeoff_figure,
)
from fedprivacy.figures.experiments import experiment_figure, parallel_figure
from fedprivacy.figures.style import DARK
from fedprivacy.values.runs import AuditResult
from fedprivacy.values.series import CostMap
from tests.figures.reading import SVG, drawn, written
from tests.runs.histories import alike, unlike

FEW = alike(rounds=20)
SERIES = FEW.series()
COMPARED = [compared_metric_figure, compared_epsilon_figure, compared_tradeoff_figure]
EIGHT = [unlike(4, rounds=20, out=f"runs/{n}").series() for n in range(8)]
AUDITS = [AuditResult(1.7e9, "canaries", "a", lower, 0.95, 3.0, 1e-4, "PLD", "server") for lower in (1.2, 4.5)]
GROWTH = CostMap(("a", "b"), (1, 2), (1, 2), np.array([[0.3, 0.1], [0.0, 0.4]]))
RATES = np.linspace(0.0, 1.0, 11)
RUNS = [
    {"run": name, "metrics": {"accuracy": value}, "settings": {"learning-rate": 10 * value, "algorithm": name}}
    for name, value in (("fedavg", 0.5), ("ditto", 0.75))
]

FIGURES = {
    "a run": lambda: run_figure(unlike(12, quota=20).series(["client-1"])),
    "a run of many": lambda: run_figure(unlike(200).series()),
    "trade-off": lambda: tradeoff_figure(SERIES),
    "cost": lambda: cost_figure(GROWTH, SERIES.facts),
    "audits": lambda: audit_figure(AUDITS, "run digits"),
    "limits": lambda: limit_figure(
        RATES, np.sqrt(RATES), "title", ["about"], alone=RATES**0.25, marked=[(0.1, 0.32, "32 %")]
    ),
    "points of runs": lambda: experiment_figure(RUNS, "learning-rate", "accuracy", "algorithm"),
    "parallel coordinates": lambda: parallel_figure(RUNS, ["learning-rate", "algorithm"], "accuracy"),
    **{figure.__name__: lambda figure=figure: figure(EIGHT) for figure in COMPARED},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FIGURES)
def test_a_drawing_can_be_put_into_any_page(name):
    """No script, style, link or id, no colour that a dark page could not replace, and paper under all of it."""
    figure = FIGURES[name]()
    figure.to_dict(validate=True)  # as Vega-Lite defines it, which nobody checks when it is drawn
    svg = to_svg(figure)
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b", svg)) <= set(DARK)
    assert set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg)) <= {*DARK, "none", "transparent"}
    assert not re.search(r"<(script|style|image|a|use)\b|\s(style|id|href|on\w+)=", svg)
    assert set(re.findall(r"https?://[^\"\s]*", svg)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    root = ElementTree.fromstring(svg)
    paper = root.find(f"{SVG}rect")
    assert (paper.get("width"), paper.get("height")) == (root.get("width"), root.get("height"))


READING = "composed over all rounds and runs, an odometer's reading"


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (lambda: epsilon_figure(SERIES, 900), f"ε of each client {{}}, {READING}"),
        (
            lambda: tradeoff_figure(SERIES, width=900),
            "accuracy after each round, global model on the server's public records, "
            f"against the largest ε of a client {{}}, {READING}",
        ),
        (
            lambda: cost_figure(GROWTH, SERIES.facts, 900),
            "2 clients; growth of each one's ε {}, over all runs; grey: none, empty: unknown",
        ),
        (lambda: compared_epsilon_figure(EIGHT, 900), f"largest ε of a client {{}}, {READING}"),
        (lambda: compared_tradeoff_figure(EIGHT, width=900), f"largest ε of a client {{}}, {READING}"),
    ],
    ids=["epsilon", "trade-off", "cost", "compared losses", "compared trade-offs"],
)
def test_the_subtitle_says_what_epsilon_is(figure, said):
    seen = "as seen by the server, δ = 1e-4, PLD accountant"
    assert said.format(seen) in written(drawn(figure())).replace("\n", " ")


BEGUN = [alike(rounds=0, out=f"runs/{name}").series() for name in "ab"]
ONE_HAS_A_ROUND = r"none of the runs can be drawn yet: a \(no finished round\), b"


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        *((lambda figure=figure: figure(BEGUN[0]), "no finished round") for figure in (run_figure, tradeoff_figure)),
        *((lambda figure=figure: figure(BEGUN), ONE_HAS_A_ROUND) for figure in COMPARED),
        (lambda: cost_figure(alike(rounds=0).costs(), SERIES.facts), "no finished round"),
        (lambda: cost_figure(CostMap(("a",), (), (), np.empty((1, 0))), SERIES.facts), "no finished round"),
        (lambda: audit_figure([], "run digits"), "no audit"),
        (lambda: experiment_figure(RUNS, "pull", "accuracy"), "no run has pull and accuracy yet"),
        (lambda: parallel_figure(RUNS, ["algorithm"], "auc"), "no run has auc yet"),
    ],
)
def test_of_nothing_nothing_is_drawn(draw, said):
    with pytest.raises(ValueError, match=said):
        draw()
