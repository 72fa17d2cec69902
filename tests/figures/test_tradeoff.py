"""The figure of a metric against the privacy loss that it took."""

import math
import re
from dataclasses import replace

import pytest

from fedprivacy.figures import tradeoff_figure
from fedprivacy.figures.style import SPENDING
from tests.figures.reading import coloured, dashed, drawn, marks, place, texts
from tests.runs.histories import alike

pytestmark = pytest.mark.exhaustive


def points_of(line):
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", line.get("d"))]


def test_the_line_goes_through_every_round_in_its_order():
    history = alike(rounds=30, value=lambda n: 0.5 + 0.4 * (-1) ** n)
    root = drawn(tradeoff_figure(history.series(), width=440))
    (line,) = marks(root, "line")
    epsilons = [record.max_epsilon for record in history.rounds]
    right, top = 3 * 1.1, 1.1
    wanted = [
        (440 * epsilon / right, 330 * (1 - record.metrics["accuracy"] / top))
        for epsilon, record in zip(epsilons, history.rounds, strict=True)
    ]
    assert points_of(line) == [pytest.approx(point, abs=0.01) for point in wanted]
    assert len(coloured(marks(root, "symbol"), SPENDING)) == 30


def test_budgets_are_upright_rules_and_of_many_only_the_least_and_the_largest():
    series = alike(rounds=30).series()
    one = drawn(tradeoff_figure(series, width=440))
    (rule,) = dashed(one)
    assert place(rule)[0] == pytest.approx(440 / 1.1, abs=1)
    assert "budget ε = 3" in texts(one)
    many = drawn(tradeoff_figure(replace(series, budgets=(1.0, 2.0, 3.0, 4.0))))
    assert len(dashed(many)) == 2
    assert {"least of 4 budgets, ε = 1", "largest of 4 budgets, ε = 4"} <= set(texts(many))
    assert not dashed(drawn(tradeoff_figure(alike(budget=math.inf).series())))
