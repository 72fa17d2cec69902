"""Figures of runs: one Vega-Lite definition for page, report, notebook and PNG.

Every figure is an Altair chart with its data inside: it displays itself in a notebook, a web page embeds its `spec_of`
(through `dark` for a dark page), and `save_png` and `to_svg` draw it without a browser and without a network.
Figures are drawn from a `RunSeries`, whose size is bounded, and load neither torch nor Flower.

The rows behind them are in `fedprivacy.figures.observations`.
"""

from fedprivacy.figures.attacks import audit_figure, limit_figure
from fedprivacy.figures.comparison import compared_epsilon_figure, compared_metric_figure, compared_tradeoff_figure
from fedprivacy.figures.named import NAMED_FIGURES, RunFigures
from fedprivacy.figures.run import cost_figure, epsilon_figure, metric_figure, run_figure, tradeoff_figure
from fedprivacy.figures.style import DARK, dark, save_png, spec_of, to_svg

__all__ = [
    "DARK",
    "NAMED_FIGURES",
    "RunFigures",
    "audit_figure",
    "compared_epsilon_figure",
    "compared_metric_figure",
    "compared_tradeoff_figure",
    "cost_figure",
    "dark",
    "epsilon_figure",
    "limit_figure",
    "metric_figure",
    "run_figure",
    "save_png",
    "spec_of",
    "to_svg",
    "tradeoff_figure",
]
