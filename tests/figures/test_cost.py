"""Where privacy loss was spent."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprivacy.figures import cost_figure
from fedprivacy.figures.run import bounds_below
from fedprivacy.figures.style import COSTS, GRID
from fedprivacy.values.series import CostMap
from tests.figures.reading import coloured, drawn, marks, rows, texts, width, written
from tests.runs.histories import alike

pytestmark = pytest.mark.exhaustive

FACTS = alike(rounds=1).series().facts


def cost_map(growth, columns=None):
    """A column of one round each, unless (first, last) of each is given."""
    growth = np.array(growth, dtype=float)
    columns = columns or [(n, n) for n in range(1, growth.shape[1] + 1)]
    clients = tuple(f"client-{n}" for n in range(1, len(growth) + 1))
    return CostMap(clients, tuple(c[0] for c in columns), tuple(c[1] for c in columns), growth)


def cells(root):
    return coloured(marks(root, "rect"), GRID), [r for colour in COSTS for r in coloured(marks(root, "rect"), colour)]


def test_a_cell_is_coloured_if_it_cost_something_grey_if_nothing_and_empty_if_unknown():
    root = drawn(cost_figure(cost_map([[0.3, 0.0, 0.1], [math.nan, 0.2, math.inf]]), FACTS))
    free, costly = cells(root)
    assert len(free) == 1 and len(costly) == 3
    assert "No client's ε grew" in written(drawn(cost_figure(cost_map([[0.0, 0.0]]), FACTS)))


def test_the_colour_grows_with_the_cost_and_the_legend_says_how():
    root = drawn(cost_figure(cost_map([[0.5, 0.2, 0.1, 0.05, 0.02, 0.01]]), FACTS))
    drawn_colours = [r.get("fill") for r in sorted(cells(root)[1], key=lambda r: r.get("d"))]
    assert set(drawn_colours) == set(COSTS)
    shown = texts(root)
    assert [text for text in shown if text[0] in "≤>"] == ["≤ 0.01", "≤ 0.02", "≤ 0.05", "≤ 0.1", "≤ 0.2", "> 0.2"]
    assert "growth of ε per round" in shown
    classes = {row["growth"]: row["class"] for row in rows(cost_figure(cost_map([[0.5, 0.2, 0.11]]), FACTS), "class")}
    assert classes == {0.5: "> 0.2", 0.2: "≤ 0.2", 0.11: "≤ 0.2"}


@given(st.floats(1e-9, 1e9))
def test_five_bounds_of_the_series_end_just_below_the_largest(largest):
    bounds = bounds_below(largest)
    assert len(bounds) == 5 and bounds == sorted(bounds)
    assert bounds[-1] < largest <= 2.5 * bounds[-1] * (1 + 1e-9)
    assert all(float(f"{bound:.1g}") == pytest.approx(bound, rel=1e-12) for bound in bounds)


def test_columns_of_several_rounds_are_called_so():
    figure = cost_figure(cost_map([[0.3, 0.1]], columns=[(1, 4), (5, 9)]), FACTS)
    root = drawn(figure)
    assert "growth of ε per column of up to 5 rounds" in texts(root)
    assert "ε grew most by 0.30: client-1 in rounds 1 to 4" in texts(root)
    assert [row["rounds"] for row in rows(figure, "rounds")] == ["1 to 4", "5 to 9"]


def test_of_very_many_clients_the_first_sixty_are_shown():
    figure = cost_figure(cost_map(np.full((70, 2), 0.1)), FACTS, 335)
    root = drawn(figure)
    assert len(cells(root)[1]) == 120
    assert "the first 60 of 70 clients" in written(root)
    assert width(root) < 335 + 200
