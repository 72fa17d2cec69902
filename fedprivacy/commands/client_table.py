"""A run's clients in a terminal: of many, equal ones in one row; of many that differ, quantiles and what stands out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Column

from fedprivacy._support.console import compact_table, figure_columns, text_columns
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.values.series import RunFacts
from fedprivacy.values.spent import ClientStanding, ClientState
from fedprivacy.values.wording import NO_PRIVACY, budget_text, count_text, reading_text, unit_text

MOST_ROWS = 10
"""Maximum number of rows: of more clients, equal ones share a row; of more that differ, only some are shown."""

MOST_FAILURES = 3
"""Maximum number of lines on clients that failed, or on reasons why."""

_QUANTILES = {"most": 0.0, "75 %": 0.25, "median": 0.5, "25 %": 0.75, "least": 1.0}
"""Places in the order in which clients have spent, the most first, by what they are called."""

_NEAR = 0.9
"""Share of a budget from which on its end is near."""


def client_table(history: RunHistory, *, whole: bool = False) -> Group:
    """Show clients with their rounds, steps, q, sigma, epsilon, steps left and state; each one if `whole`."""
    clients, facts = list(history.standings.values()), history.facts
    budgets = {client.spent.budget_epsilon for client in clients}
    rows = _rows(clients, facts, several=len(budgets) > 1, whole=whole)
    spent = figure_columns("rounds", "steps", "q", "sigma", "epsilon", "left")
    table = compact_table(*text_columns("client"), *spent, Column("state", no_wrap=True))
    for cells, (label, each) in rows.items():
        name = each[0].client_id if len(each) == 1 else f"{len(each):,} clients"
        state = each[0].state
        colour = "green" if state.good else "yellow"
        table.add_row(escape(f"{label}{name}"), *cells[1:], f"[{colour}]{state}")
    title, caption = _words(history, budgets)
    if sum(len(each) for _, each in rows.values()) < len(clients):
        states = Counter(client.state for client in clients)
        counts = ", ".join(f"{states[state]:,} {state}" for state in ClientState if states[state])
        near = sum(client.state is ClientState.ACTIVE and (client.spent.share or 0.0) >= _NEAR for client in clients)
        nearly = (
            f" {count_text(near, 'active client')} have spent {100 * _NEAR:.0f} % of their budget or more."
            if near
            else ""
        )
        caption = f"{len(clients):,} clients: {counts}.{nearly} {caption}"
    return Group(title, table, f"[dim]{caption}")


_Rows = Mapping[tuple[str, ...], tuple[str, Sequence[ClientStanding]]]
"""The label and the clients of each row, by its cells."""


def _rows(clients: Sequence[ClientStanding], facts: RunFacts, *, several: bool, whole: bool) -> _Rows:
    if whole or len(clients) <= MOST_ROWS:
        return {(c.client_id, *_cells(c, facts, several=several)): ("", [c]) for c in clients}
    ranked = sorted(clients, key=_spent, reverse=True)
    alike: dict[tuple[str, ...], list[ClientStanding]] = defaultdict(list)
    for client in ranked:
        alike[(client.state, *_cells(client, facts, several=several))].append(client)
    if len(alike) <= MOST_ROWS:
        return {cells: ("", each) for cells, each in alike.items()}
    chosen = {label: ranked[round(share * (len(ranked) - 1))] for label, share in _QUANTILES.items()}
    shown = {client.state for client in chosen.values()}
    first = {client.state: client for client in reversed(ranked) if not client.state.good}
    chosen |= {state: client for state, client in first.items() if state not in shown}
    return {
        (label, *_cells(client, facts, several=several)): (f"{label}: " if label in _QUANTILES else "", [client])
        for label, client in chosen.items()
    }


def _spent(client: ClientStanding) -> float:
    """The share of the budget, or, without one, the epsilon: what clients are ranked by."""
    share = client.spent.share
    return client.spent.epsilon if share is None else share


def _cells(client: ClientStanding, facts: RunFacts, *, several: bool) -> tuple[str, ...]:
    spent = client.spent
    of_budget = f" of {budget_text(spent.budget_epsilon)}" if several and spent.limited else ""
    return (
        str(spent.rounds),
        str(spent.steps),
        f"{spent.sampling_rate:.3g}",
        f"{spent.noise_multiplier:.3f}" if facts.private else "none",
        facts.epsilon_text(spent.epsilon, spent.budget_epsilon) + of_budget,
        str(spent.steps_left) if spent.limited else "no limit",  # steps: epsilons cannot be subtracted
    )


def _words(history: RunHistory, budgets: set[float]) -> tuple[str, str]:
    """The title and the caption."""
    if not history.facts.private:
        return f"A baseline: {NO_PRIVACY}", (
            "No clipping and no noise by the clients: nothing was charged, and the server sees it all."
        )
    (least, *_), delta = sorted(budgets), next(iter(history.last.spent.values())).delta
    limit = f"budget epsilon {budget_text(least)}" if math.isfinite(least) else "no budget"
    return "Privacy spent by each client (server's view, over all rounds and runs)", (
        f"{'each client its own budget' if len(budgets) > 1 else limit}, delta {delta:g}; accountant PLD; "
        f"{history.relation} relation{unit_text(history.unit)}. {reading_text(least)} Left: local steps of this run."
    )


def failures(history: RunHistory) -> list[str]:
    """Return a line for each client that failed, with how often and why; of many, one for each of the main reasons."""
    count = Counter(item for record in history.rounds for item in record.failures.items())
    if len(count) <= MOST_FAILURES:
        return [
            f"{client_id}: {reason} in {count_text(rounds, 'round')}"
            for (client_id, reason), rounds in sorted(count.items())
        ]
    updates, clients = Counter[str](), Counter[str]()
    for (_, reason), rounds in count.items():
        updates[reason] += rounds
        clients[reason] += 1
    lines = [
        f"{count_text(clients[reason], 'client')}: {reason}, {count_text(number, 'update')} in all"
        for reason, number in updates.most_common(MOST_FAILURES)
    ]
    return lines + [f"and {len(updates) - MOST_FAILURES} more reasons, in the report"] * (len(updates) > MOST_FAILURES)
