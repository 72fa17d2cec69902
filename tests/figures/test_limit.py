"""The figure of the most that any attack finds."""

import numpy as np
import pytest

from fedprivacy.figures import limit_figure
from fedprivacy.figures.style import SPENDING
from tests.figures.reading import drawn, marks, texts, written

pytestmark = pytest.mark.exhaustive


def path(line):
    """The points of a drawn line, in px."""
    numbers = line.get("d").replace("M", " ").replace("L", " ").replace(",", " ").split()
    return np.array(numbers, dtype=float).reshape(-1, 2)


def test_a_limit_is_a_curve_with_marked_points_beside_a_thinner_one_and_guessing():
    rates = np.geomspace(1e-3, 1.0, 31)
    marked = [(0.01, 0.1, "10 %"), (0.1, 0.316, "31.6 %")]
    root = drawn(limit_figure(rates, np.sqrt(rates), "title", ["about"], alone=rates**0.25, marked=marked, width=300))
    guess, alone, limit = marks(root, "line")
    assert path(limit)[0] == pytest.approx([0.0, 150.0], abs=0.01) and path(alone)[0][1] == pytest.approx(
        75.0, abs=0.01
    )
    assert path(guess) == pytest.approx(np.array([[0.0, 300.0], [300.0, 0.0]]), abs=0.01)
    assert float(alone.get("stroke-width")) < float(limit.get("stroke-width")) and limit.get("stroke") == SPENDING
    assert {"10 %", "31.6 %", "accused wrongly", "found, at most"} <= set(texts(root)) and len(
        marks(root, "symbol")
    ) == 2
    assert "thin: what ε and δ alone would allow, dotted: guessing" in written(root)
    assert "alone" not in written(drawn(limit_figure(rates, np.sqrt(rates), "title", ["about"])))
