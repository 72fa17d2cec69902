"""A run as one HTML file: for the people who must answer for it, to mail, print and keep.

The page carries everything in itself, runs no script and asks the network for nothing; its content security policy
allows one style sheet, named by its hash. Numbers are computed here, sentences live in `report.html.jinja`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import jinja2

from fedprivacy import figures
from fedprivacy.runs.history import RunHistory
from fedprivacy.values import wording
from fedprivacy.values.spent import ClientSpent, Reason, reason_of

TEMPLATE = "report.html.jinja"
FALSE_POSITIVE_RATES = (0.01, 0.05)
FIGURE_WIDTH = 335
"""Of each plot in px: two of them with their labels are as wide as the page."""


def write_report(history: RunHistory, path: Path) -> None:
    """Write the report of a run.

    Args:
        history: a run with at least one finished round.
        path: the HTML file; it is replaced if it exists.

    Raises:
        ValueError: the history has no finished round.
    """
    path.write_text(report_html(history), encoding="utf-8")


def report_html(history: RunHistory) -> str:
    """The report of a run as one self-contained HTML document; every name in it is escaped.

    Raises:
        ValueError: the history has no finished round.
    """
    series = history.series()
    drawings = (figures.metric_figure(series, width=FIGURE_WIDTH), figures.epsilon_figure(series, FIGURE_WIDTH))
    return _template().render(
        history=history,
        facts=series.facts,
        figures=figures,
        wording=wording,
        infinity=math.inf,
        drawings=[figures.to_svg(drawing) for drawing in drawings],
        worst=max(history.rounds[-1].spent.values(), key=lambda client: client.epsilon),
        clients=client_rows(history),
        failures=failure_rows(history),
        bounds=bound_rows(history),
        false_positive_rates=FALSE_POSITIVE_RATES,
    )


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client in the report.

    Attributes:
        spent: its account after the last round, over all runs.
        averaged: rounds of this run whose average holds its update.
        failed: rounds of this run in which its update was asked for and not used.
        exhausted_in: the round of this run after which nothing was left of its budget; None: something is left.
    """

    spent: ClientSpent
    averaged: int
    failed: int
    exhausted_in: int | None

    @property
    def share(self) -> float:
        """Spent epsilon as a share of the budget, in [0, 1]; 0 without a finite budget."""
        return min(1.0, self.spent.epsilon / self.spent.budget_epsilon)


def client_rows(history: RunHistory) -> list[ClientRow]:
    """Every enrolled client, in the order in which people count: client 2 before client 10."""
    averaged = Counter(client_id for record in history.rounds for client_id in record.participants)
    failed = Counter(client_id for record in history.rounds for client_id in record.failures)
    exhausted_in: dict[str, int] = {}
    for record in history.rounds:
        for client_id in record.exhausted:
            exhausted_in.setdefault(client_id, record.round)
    spent = sorted(history.rounds[-1].spent.values(), key=lambda client: _as_counted(client.client_id))
    return [
        ClientRow(client, averaged[client.client_id], failed[client.client_id], exhausted_in.get(client.client_id))
        for client in spent
    ]


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One reason for which updates were asked for and not used.

    Attributes:
        code: the reason, a constant.
        reason: what it means.
        detail: what it was about, for example a parameter's name; empty if it says nothing more.
        times: how often.
        client_ids: whose updates.
    """

    code: str
    reason: Reason
    detail: str
    times: int
    client_ids: tuple[str, ...]


def failure_rows(history: RunHistory) -> list[FailureRow]:
    """Failures of the run by reason, the most frequent first."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for record in history.rounds:
        for client_id, reason in record.failures.items():
            by_reason[reason].append(client_id)
    return [
        FailureRow(
            code=reason.partition(":")[0],
            reason=reason_of(reason),
            detail=reason.partition(":")[2],
            times=len(client_ids),
            client_ids=tuple(sorted(set(client_ids), key=_as_counted)),
        )
        for reason, client_ids in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


@dataclass(frozen=True, slots=True)
class BoundRow:
    """What an (epsilon, delta) leaves to somebody who wants to know whether a record was used.

    Attributes:
        epsilon: the privacy loss.
        is_budget: whether it is the budget, else the largest loss of a client so far.
        odds: the factor, as a text.
        true_positives: for each of `FALSE_POSITIVE_RATES` the largest true-positive rate, as a text.
    """

    epsilon: float
    is_budget: bool
    odds: str
    true_positives: tuple[str, ...]


def bound_rows(history: RunHistory) -> list[BoundRow]:
    """The bound at the largest loss of a client and, if there is one, at the largest budget."""
    spent = history.rounds[-1].spent.values()
    delta = float(history.settings["delta"])
    largest = max(client.epsilon for client in spent)
    budget = max(client.budget_epsilon for client in spent)
    levels = [(largest, False)] + [(budget, True)] * math.isfinite(budget)
    return [
        BoundRow(
            epsilon=epsilon,
            is_budget=is_budget,
            odds=_factor_text(epsilon),
            true_positives=tuple(
                _percent_up(true_positive_bound(epsilon, delta, rate)) for rate in FALSE_POSITIVE_RATES
            ),
        )
        for epsilon, is_budget in levels
    ]


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
    return f"{rounded:f}" if rounded < 1_000_000 else f"{rounded:.2e}"


def _percent_up(rate: float) -> str:
    """A rate in percent, rounded up to one decimal."""
    percent = (100 * Decimal(repr(rate))).quantize(Decimal("0.1"), ROUND_CEILING)
    return f"{percent}\N{NO-BREAK SPACE}%"


def _csp_hash(text: str) -> str:
    """The source expression that allows an inline element with this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["csp_hash"] = _csp_hash
    return environment.from_string(importlib.resources.files("fedprivacy.runs").joinpath(TEMPLATE).read_text("utf-8"))
