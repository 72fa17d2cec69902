"""`run.figures` in a notebook draws what the functions draw, and figures load neither torch nor Flower."""

from pathlib import Path

import pytest

from fedprivacy.figures import cost_figure, epsilon_figure, metric_figure, run_figure, tradeoff_figure
from fedprivacy.figures.named import RunData, RunFigures
from fedprivacy.figures.observations import cost_rows
from fedprivacy.runs.records.run import Run
from tests.runs.histories import alike, unlike

HISTORY = unlike(4, rounds=8)


@pytest.mark.exhaustive
def test_each_method_shows_its_figure():
    figures, series = Run(Path(), HISTORY).figures, HISTORY.series()
    assert figures.overview().chart.to_dict() == run_figure(series).to_dict()
    assert figures.metric().chart.to_dict() == metric_figure(series).to_dict()
    assert figures.metric("loss").chart.to_dict() == metric_figure(series, "loss").to_dict()
    assert figures.tradeoff().chart.to_dict() == tradeoff_figure(series).to_dict()
    assert figures.cost().chart.to_dict() == cost_figure(HISTORY.costs(), series.facts).to_dict()


@pytest.mark.exhaustive
def test_clients_are_chosen_by_their_names():
    figures, chosen = Run(Path(), HISTORY).figures, ("client-1", "client-4")
    assert figures.epsilon(*chosen).chart.to_dict() == epsilon_figure(HISTORY.series(chosen)).to_dict()
    assert figures.epsilon(*chosen).chart.to_dict() != figures.epsilon().chart.to_dict()
    assert [row["client"] for row in cost_rows(HISTORY.costs(chosen))][:: len(HISTORY.rounds)] == list(chosen)
    assert figures.cost(*chosen).chart.to_dict() == cost_figure(HISTORY.costs(chosen), HISTORY.series().facts).to_dict()
    for draw in (figures.epsilon, figures.cost):
        with pytest.raises(ValueError, match=r"no client 'client-9'; choose"):
            draw("client-1", "client-9")


def test_a_figure_is_drawn_by_its_name_or_the_names_are_told():
    figures = Run(Path(), HISTORY).figures
    assert figures.named("metric", metric="loss").chart.to_dict() == figures.metric("loss").chart.to_dict()
    with pytest.raises(ValueError, match=r"no figure 'epsilons'; choose from metric, epsilon, tradeoff, cost\."):
        figures.named("epsilons")


def test_a_figure_shows_what_is_known_when_it_is_asked_for():
    rounds = [1]
    figures = RunFigures(RunData(lambda chosen: alike(rounds=rounds[-1]).series(chosen), HISTORY.costs))
    before = figures.metric().chart.to_dict()
    rounds.append(2)
    assert figures.metric().chart.to_dict() != before
