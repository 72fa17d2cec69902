"""The figure of rounds left, if the run went on with more noise."""

import pytest

from fedprivacy.figures import forecast_figure
from fedprivacy.figures.style import INK, SPENDING
from tests.figures.reading import coloured, dashed, drawn, marks, place, text_called, texts
from tests.runs.histories import alike

pytestmark = pytest.mark.exhaustive

FACTS = alike(rounds=1).series().facts
OWN = FACTS.noise_multiplier


def test_the_run_s_own_noise_is_marked_and_its_rounds_are_said():
    root = drawn(forecast_figure([(1.0, 5), (OWN, 37), (4.0, 140)], FACTS, "client-3", 440))
    assert "client-3: 37 rounds left at noise multiplier 2.137" in texts(root)
    (rule,) = dashed(root)
    (own,) = coloured(marks(root, "symbol"), INK)
    assert place(rule)[0] == pytest.approx(place(own)[0], abs=1)
    assert len(coloured(marks(root, "symbol"), SPENDING)) == 3
    assert text_called(root, "this run: 2.137") is not None


def test_without_the_run_s_own_noise_no_number_of_rounds_is_made_up():
    root = drawn(forecast_figure([(1.0, 5), (4.0, 140)], FACTS, "client-3"))
    assert "client-3: rounds left by noise multiplier" in texts(root)
    assert len(dashed(root)) == 1 and not coloured(marks(root, "symbol"), INK)
