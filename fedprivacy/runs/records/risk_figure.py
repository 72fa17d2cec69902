"""The trade-off curve of what was charged, as a figure: what each rate of false accusations buys an attacker."""

from __future__ import annotations

import numpy as np

from fedprivacy import figures
from fedprivacy._support.altair import alt
from fedprivacy.accounting.risk import RATES, Risk
from fedprivacy.values.unit import RECORD
from fedprivacy.values.wording import at_most_text, delta_text, epsilon_text, plural, share_text

_POINTS = 200
_SIDE = 320


def risk_figure(risk: Risk, unit: str = RECORD.name, width: int = _SIDE) -> alt.LayerChart:
    """Draw the most that any attack finds, beside what epsilon and delta alone allow.

    Args:
        risk: the risk of one unit.
        unit: name of the unit of privacy.
        width: width of the plot between its axes, in px.
    """
    grid = np.geomspace(RATES[0], 1.0, _POINTS)
    wrong, most = RATES[1], at_most_text(float(risk.found(RATES[1])))
    return figures.limit_figure(
        grid,
        risk.found(grid),
        f"Who accuses {share_text(wrong)} wrongly finds at most {most} of the {plural(unit)}",
        [f"one {unit}", f"ε = {epsilon_text(risk.epsilon)} at δ = {delta_text(risk.delta)}"],
        alone=Risk.of_budget(risk.epsilon, risk.delta).found(grid) if risk.whole else None,
        marked=[(rate, found := float(risk.found(rate)), at_most_text(found)) for rate in RATES],
        width=width,
    )
