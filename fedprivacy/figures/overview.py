"""A run at a glance."""

from __future__ import annotations

import altair as alt

from fedprivacy.figures.epsilon import epsilon_panel
from fedprivacy.figures.metric import metric_panel
from fedprivacy.figures.style import WIDTH, styled
from fedprivacy.values.series import RunSeries


def run_figure(series: RunSeries) -> alt.HConcatChart:
    """The run at a glance, about 1200 px wide: `metric_figure` and `epsilon_figure` side by side.

    Raises:
        ValueError: the run has no finished round.
    """
    panels = [metric_panel(series, None, WIDTH), epsilon_panel(series, WIDTH)]
    lines = max(len(panel.title.subtitle) for panel in panels)
    for panel in panels:  # both titles begin at the same height
        panel.title.subtitle += [""] * (lines - len(panel.title.subtitle))
    return styled(alt.hconcat(*panels, spacing=40))
