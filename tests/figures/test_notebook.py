"""`run.figures` in a notebook draws what the functions draw, and figures load neither torch nor Flower."""

from pathlib import Path

import pytest

from fedprivacy.runs.records.run import Run
from tests.runs.histories import unlike

HISTORY = unlike(4, rounds=8)


def test_a_figure_is_drawn_by_its_name_or_the_names_are_told():
    figures = Run(Path(), HISTORY).figures
    assert figures.named("metric", metric="loss").chart.to_dict() == figures.metric("loss").chart.to_dict()
    with pytest.raises(ValueError, match=r"no figure 'epsilons'; choose from metric, epsilon, tradeoff, cost\."):
        figures.named("epsilons")
