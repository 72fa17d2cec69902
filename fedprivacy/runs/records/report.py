"""A run as one HTML file: for the people who must answer for it, to mail, print and keep.

Numbers are computed here, sentences live in `report.html.jinja`; see `fedprivacy.runs.records.html_page`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from decimal import ROUND_CEILING, Decimal
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedprivacy import figures
from fedprivacy._support.durable import write_durably
from fedprivacy.accounting import pld
from fedprivacy.accounting.persons import ROWS, of_person
from fedprivacy.accounting.views import View
from fedprivacy.runs.records.folder import FIGURE, REPORT, RunFolderError, writing
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.records.html_page import for_every_screen, page
from fedprivacy.values.evaluation import Evaluation
from fedprivacy.values.held_out import HeldOut, ScoreSpread, spread_of
from fedprivacy.values.runs import Failures
from fedprivacy.values.spent import reason_of
from fedprivacy.values.unit import Unit
from fedprivacy.values.wording import plural, written_out

TEMPLATE = "report.html.jinja"
FALSE_POSITIVE_RATES = (0.01, 0.05)
FIGURE_WIDTH = 335
"""Width of each plot in px: two with their labels are as wide as the page."""


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
    series, spent = history.series(), history.last.spent
    drawings = [for_every_screen(lambda width, below: figures.metric_figure(series, width=width), FIGURE_WIDTH)]
    if series.facts.private:
        drawings.append(for_every_screen(partial(figures.epsilon_figure, series), FIGURE_WIDTH))
    worst = max(spent.values(), key=lambda client: client.epsilon)
    budgets = {client.budget_epsilon for client in spent.values()}
    budget, unit = max(budgets), Unit.of(history.unit)
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
        clients=sorted(history.named(list(spent)), key=lambda client: _as_counted(client.client_id)),
        evaluated=_evaluated(history),
        held_out=_held_out(history),
        failures=failures(history),
        user_level_view=View.USER_LEVEL,
        several_budgets=len(budgets) > 1,
        by_rows=_by_rows(history, worst.delta),
        levels=[(worst.epsilon, False)] + [(budget, True)] * math.isfinite(budget),
        odds=_factor_text,
        found_at_most=lambda *test: _percent_up(true_positive_bound(*test)),
        false_positive_rates=FALSE_POSITIVE_RATES,
    )


def _by_rows(history: RunHistory, delta: float) -> dict[int, float]:
    """Epsilons of a person with several records at the client that has spent most; empty if a record is a person."""
    charged = history.last.most_charged
    if Unit.of(history.unit).rows > 1 or not charged:
        return {}
    return {rows: pld.epsilon(of_person(charged, rows), delta) for rows in ROWS}


class Evaluated(NamedTuple):
    """The newest local evaluations of a run: of which round, what was scored, and by client what came of it."""

    round: int
    scores: list[str]
    clients: list[tuple[str, Evaluation]]


def _evaluated(history: RunHistory) -> Evaluated | None:
    if (record := history.last_evaluated) is None:
        return None
    clients = sorted(record.evaluations.items(), key=lambda item: _as_counted(item[0]))
    return Evaluated(record.round, list(clients[0][1].means), clients)


class OfEach(NamedTuple):
    """The newest scores of clients' models on held-out records: of which round, their spread, and each client's."""

    round: int
    spreads: dict[str, ScoreSpread]
    clients: list[tuple[str, HeldOut]]


def _held_out(history: RunHistory) -> OfEach | None:
    if (record := history.last_held_out) is None:
        return None
    clients = sorted(record.held_out.items(), key=lambda item: _as_counted(item[0]))
    return OfEach(record.round, spread_of(record.held_out), clients)


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


def true_positive_bound(epsilon: float, delta: float, false_positive_rate: float) -> float:
    """The largest true-positive rate of any test for the use of one record that (epsilon, delta)-DP allows.

    Formal guarantee (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015): a test that fires with probability a on the
    neighbouring shard fires with probability at most min{1, delta + e^epsilon a, 1 - e^-epsilon (1 - delta - a)} on
    the shard, whatever it computes and whatever else it knows. No smaller number holds for every (epsilon, delta)-DP
    mechanism.

    Args:
        epsilon: privacy loss, >= 0, maybe infinite.
        delta: in [0, 1].
        false_positive_rate: a, in [0, 1].
    """
    if false_positive_rate == 0.0:
        return delta
    by_raising = delta + math.exp(min(epsilon, 700.0)) * false_positive_rate
    by_sparing = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_positive_rate)
    return min(1.0, by_raising, by_sparing)


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


def _percent_up(rate: float) -> str:
    """A rate in percent, rounded up to one decimal."""
    percent = (100 * Decimal(repr(rate))).quantize(Decimal("0.1"), ROUND_CEILING)
    return f"{percent}\N{NO-BREAK SPACE}%"
