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
from tests.figures.reading import coloured, drawn, marks, written
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


@given(st.floats(1e-9, 1e9))
def test_five_bounds_of_the_series_end_just_below_the_largest(largest):
    bounds = bounds_below(largest)
    assert len(bounds) == 5 and bounds == sorted(bounds)
    assert bounds[-1] < largest <= 2.5 * bounds[-1] * (1 + 1e-9)
    assert all(float(f"{bound:.1g}") == pytest.approx(bound, rel=1e-12) for bound in bounds)
