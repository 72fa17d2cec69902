"""A run as one HTML file: for the people who must answer for it, to mail, print and keep.

Numbers are computed here, sentences live in `report.html.jinja`; see `fedprivacy.runs.records.html_page`.
The page's curve of what an attack can find, `risk_figure`, is drawn for `fedprivacy risk` and the dossier too.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from decimal import ROUND_CEILING, Decimal
from functools import partial
from pathlib import Path

import numpy as np

from fedprivacy import figures
from fedprivacy._support.altair import alt, debug_mode
from fedprivacy._support.durable import write_durably
from fedprivacy.accounting.histories import ROWS, person_history
from fedprivacy.accounting.risk import RATES, Risk
from fedprivacy.accounting.views import View
from fedprivacy.runs.records.folder import FIGURE, REPORT, RunFolderError, writing
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.records.html_page import for_every_screen, page
from fedprivacy.values.metrics import spread_of
from fedprivacy.values.runs import Failures
from fedprivacy.values.spent import reason_of
from fedprivacy.values.unit import RECORD, Unit
from fedprivacy.values.wording import at_most_text, delta_text, epsilon_text, plural, share_text, written_out

TEMPLATE = "report.html.jinja"
_FIGURE_WIDTH = 335
"""Width of each plot in px: two with their labels are as wide as the page."""

_CURVE_POINTS = 200
_CURVE_WIDTH = 320


@debug_mode(False)  # figures are checked part by part in the tests; here it would be a quarter of the time
def draw(history: RunHistory, folder: Path) -> None:
    """Draw a run's figure and write its report into a folder, in place of those that are there.

    Raises:
        RunFolderError: the history has no finished round, or the folder cannot be written; each of the two is there
            whole or not at all.
    """
    if not history.rounds:
        raise RunFolderError("the run has no finished round yet, so there is nothing to draw.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        figures.save_png(figures.run_figure(history.series()), folder / FIGURE)
        write_report(history, folder / REPORT)


def write_report(history: RunHistory, path: Path) -> None:
    """Write the report of a run into an HTML file, which is replaced if it exists.

    Raises:
        ValueError: the history has no finished round.
    """
    write_durably(path, report_html(history).encode())


def report_html(history: RunHistory) -> str:
    """The report of a run as one self-contained HTML document; every name in it is escaped.

    Raises:
        ValueError: the history has no finished round.
    """
    series, spent, unit = history.series(), history.last.spent, Unit.of(history.unit)
    drawings = [for_every_screen(lambda width, below: figures.metric_figure(series, width=width), _FIGURE_WIDTH)]
    if series.facts.private:
        drawings.append(for_every_screen(partial(figures.epsilon_figure, series), _FIGURE_WIDTH))
    worst, risk = history.worst, history.risk
    if risk:
        # Its labels stand in the plot, however narrow it is.
        drawings.append(for_every_screen(lambda width, below: risk_figure(risk, unit.name, width), _FIGURE_WIDTH))
    budgets = {client.budget_epsilon for client in spent.values()}
    budget = max(budgets)
    return page(
        TEMPLATE,
        history=history,
        unit=unit,
        many=plural(unit.name),
        facts=series.facts,
        reason_of=reason_of,
        infinity=math.inf,
        drawings=drawings,
        worst=worst,
        clients=sorted(map(history.standings.__getitem__, spent), key=lambda client: _as_counted(client.client_id)),
        evaluated=history.last_evaluated,
        held_out=history.last_held_out,
        spread_of=spread_of,
        in_order=lambda of_clients: sorted(of_clients.items(), key=lambda item: _as_counted(item[0])),
        failures=failures(history),
        user_level_view=View.USER_LEVEL,
        several_budgets=len(budgets) > 1,
        by_rows=_by_rows(history, worst.delta),
        risk=risk,
        risk_of_budget=Risk.of_budget(budget, worst.delta) if math.isfinite(budget) else None,
        odds=_factor_text,
        rates=RATES,
    )


def _by_rows(history: RunHistory, delta: float) -> dict[int, Risk]:
    """Risks of a person with several records at the client that has spent most; empty if a record is a person."""
    charged = history.last.most_charged
    if Unit.of(history.unit).rows > 1 or not charged:
        return {}
    return {rows: Risk.of_history(person_history(charged, rows), delta) for rows in ROWS}


def failures(history: RunHistory) -> list[Failures]:
    """Failures of the run by reason, the most frequent first, each with all its clients."""
    by_reason: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for record in history.rounds:
        for client_id, reason in record.failures.items():
            by_reason[reason].append((client_id, record.round))
    found = []
    for reason, updates in by_reason.items():
        client_ids = sorted({client_id for client_id, _ in updates}, key=_as_counted)
        found.append(Failures(reason, len(updates), len(client_ids), tuple(client_ids), updates[-1][1]))
    return sorted(found, key=lambda failure: (-failure.times, failure.reason))


def _as_counted(client_id: str) -> tuple[tuple[int, str], ...]:
    """Sorts digits by their value: every run of them is padded to the same length."""
    return tuple((len(part), part) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", client_id))


def _factor_text(epsilon: float) -> str:
    """e^epsilon, rounded up to three digits."""
    if epsilon > 700.0:
        return "more than 1e304"
    factor = Decimal(repr(math.exp(epsilon)))
    rounded = factor.quantize(Decimal(1).scaleb(factor.adjusted() - 2), ROUND_CEILING)
    return written_out(rounded)


def risk_figure(risk: Risk, unit: str = RECORD.name, width: int = _CURVE_WIDTH) -> alt.LayerChart:
    """Draw the most that any attack finds, beside what epsilon and delta alone allow.

    Args:
        risk: the risk of one unit.
        unit: name of the unit of privacy.
        width: width of the plot between its axes, in px.
    """
    grid = np.geomspace(RATES[0], 1.0, _CURVE_POINTS)
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
