"""The figure over budgets: which rows make lines, where they end, and what stands beside them."""

import pytest

from fedprivacy.figures.style import spec_of
from simulations.reproduce.figures import DrawnRow, budgets_figure, has_lines


def row(line, budget, mean, error=0.01, goal=None):
    values = (mean - error, mean, mean + error)
    return DrawnRow(f"{line} {budget}", values, mean, error, goal, None, None, line=line, budget=budget)


NEAR = [row("ours", 1.0, 0.8, goal=0.75), row("ours", 8.0, 0.9), row("alone", 1.0, 0.5), row("alone", 8.0, 0.7)]


def layers(rows):
    """The rows of each layer's data, by its mark."""
    spec = spec_of(budgets_figure("Title", "accuracy", rows))
    found = {}
    for layer in spec["layer"]:
        found.setdefault(layer["mark"]["type"], []).append(spec["datasets"][layer["data"]["name"]])
    return found


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (NEAR, True),
        ([row("ours", 1.0, 0.5), row("ours", None, 0.6)], False),
        ([row(f"{n}", b, 0.5) for n in range(9) for b in (1.0, 2.0)], False),
    ],
    ids=["two budgets", "one budget and no privacy", "more lines than colours"],
)
def test_a_line_needs_two_budgets_and_a_colour(rows, expected):
    assert has_lines(rows) is expected


def test_every_row_is_a_point_and_every_line_has_its_name_and_end():
    found = layers(NEAR)
    (points,) = found["line"]
    assert {(p["line"], p["budget"], p["mean"]) for p in points} == {(r.line, r.budget, r.mean) for r in NEAR}
    assert [(p["low"], p["high"]) for p in points if p["mean"] == 0.8] == [pytest.approx((0.78, 0.82))]
    assert {label["text"] for label in found["text"][0]} == {"0.900\N{EN SPACE}ours", "0.700\N{EN SPACE}alone"}
    assert [goal["goal"] for goal in found["tick"][0]] == [0.75]
