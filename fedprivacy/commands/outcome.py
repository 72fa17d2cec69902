"""A finished run in a terminal: tables of its clients, its result in words, and what to type next, ready to be pasted.

Of many clients, equal ones share a row; of many that differ, the table shows quantiles and what stands out.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group
from rich.markup import escape
from rich.table import Column, Table

from fedprivacy._support.console import compact_table, figure_columns, text_columns
from fedprivacy.commands.terminal import as_typed
from fedprivacy.runs.placement import Placement
from fedprivacy.runs.records.folder import REPORT
from fedprivacy.runs.records.history import RunHistory
from fedprivacy.runs.settings.configuration import RUNS, RunConfig, Value, resolve
from fedprivacy.tasks.identity import DEFAULT_TASK
from fedprivacy.training.machine import Machine
from fedprivacy.values.metrics import OF_CLIENTS, RECORDS, spread_of
from fedprivacy.values.series import RunFacts
from fedprivacy.values.spent import ClientStanding, ClientState
from fedprivacy.values.unit import Unit
from fedprivacy.values.wording import (
    NO_PRIVACY,
    budget_text,
    count_text,
    epsilon_text,
    metric_name,
    metric_text,
    plural,
    reading_text,
    time_text,
    unit_text,
)

MOST_ROWS = 10
"""Maximum number of rows: of more clients, equal ones share a row; of more that differ, only some are shown."""

MOST_FAILURES = 3
"""Maximum number of clients that failed, or of reasons why, that are shown."""

_QUANTILES = {"most": 0.0, "75 %": 0.25, "median": 0.5, "25 %": 0.75, "least": 1.0}
"""Places in the order in which clients have spent, the most first, by what they are called."""

_NEAR = 0.9
"""Share of a budget from which on its end is near."""

_OF_THIS_RUN = ("epsilon", "noise-multiplier", "out", "privacy", "resume")
"""Settings that the run that is proposed next does not take over."""


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


def held_out_table(history: RunHistory) -> Table | None:
    """The spread of clients' models on their held-out records; None: they were not measured."""
    if (record := history.last_held_out) is None:
        return None
    clients, records = count_text(len(record.held_out), "client"), plural(Unit.of(history.unit).name)
    headings = f"all {records}", "least", "lower quartile", "median", "upper quartile", "most"
    table = compact_table("score", *figure_columns(*headings, wrapped=True))
    table.title = f"Each client's model on its held-out, public {records}, after round {record.round}"
    for name, spread in spread_of(record.held_out).items():
        table.add_row(name, *(f"{value:.4g}" for value in spread))
    table.caption = f"Of {clients}; from the second figure on, of the clients' own figures."
    return table


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


def result_text(history: RunHistory, config: RunConfig) -> str:
    """The result of a finished run in one line, in Rich's markup."""
    result = f"{metric_name(history.metric)} {metric_text(history.metric, history.newest_metrics.get(history.metric))}"
    loss = f"no client above epsilon {epsilon_text(history.last.max_epsilon, config.epsilon)}"
    clock = history.last.clock
    took = "" if clock is None else f" and {time_text(clock)} of simulated time"
    return (
        f"[bold]{escape(result)}[/] after {count_text(len(history.rounds), 'round')}{took}; "
        f"{loss if config.privacy else f'[bold red]{NO_PRIVACY}[/]'}."
    )


def nobody_trained(history: RunHistory) -> str:
    """Say that no update of any client is in the model, and the reasons that are known; "": some are, or user-level
    noise hides whether any is, and moved the model anyway.
    """
    if history.last.user_level is not None or any(result.participants for result in history.rounds):
        return ""
    reasons = history.last.failures
    shown = "; ".join(f"{client_id}: {reason}" for client_id, reason in sorted(reasons.items())[:MOST_FAILURES])
    more = f"; and {count_text(len(reasons) - MOST_FAILURES, 'client')} more" if len(reasons) > MOST_FAILURES else ""
    return f"Nobody trained: the model is the one that the run began with. {shown or 'No client joined a round'}{more}."


def outcome_text(
    history: RunHistory, config: RunConfig, given: Mapping[str, Value], placement: Placement, *, verbose: bool = False
) -> str:
    """A finished run for people, in Rich's markup; no command in it may be wrapped.

    Args:
        history: the run.
        config: its settings.
        given: those that the user gave; `config` is the file that some of them are in.
        placement: where the clients ran.
        verbose: whether to name the machine, too.
    """
    last = history.last
    about_seed = "The noise came from a secret that is gone: this run cannot be repeated."
    if not (config.privacy or config.user_level):
        about_seed = "A baseline, without clipping and noise: to compare with, never to use on real people's records."
    elif config.seed is not None:
        about_seed = f"Seeded with {config.seed}: repeatable, and no protection from whoever knows the seed."
    standardised = ""
    if config.question_spend is not None:
        most = epsilon_text(config.question_spend)
        standardised = f"Inputs standardised by a private answer: at most epsilon {most}, once.\n"
    out, report = Path(config.out), Path(config.out) / REPORT
    store = () if out.parent == Path(RUNS) else ("--store", config.out)
    return (
        f"\n{result_text(history, config)}\n"
        f"{_user_level(history)}"
        f"{_on_own_records(history)}"
        f"{standardised}{about_seed}\n"
        f"{_machine(out) if verbose else ''}"
        f"Report, with every client: {escape(str(report)) if report.exists() else 'none'}\n"
        f"In a browser{'' if store else ', with all runs'}: {_bold('dashboard', *store)}\n"
        f"{_next(last.max_epsilon, config, given, placement)}"
    )


def _machine(folder: Path) -> str:
    """The machine and its methods in one line, for reports of trouble."""
    machine = Machine.kept_in(folder)
    return f"This machine: {escape(machine.line)}.\n" if machine else ""


def _user_level(history: RunHistory) -> str:
    """The loss of a client as a whole by the published models: beside what its records lost, and never added to it."""
    if (spent := history.last.user_level) is None:
        return ""
    trusted = (
        "" if history.facts.private else " Clients trained plainly: the server is trusted with all that they sent."
    )
    return f"Each client as a whole: {escape(spent.text)}; an account of its own, never added to the other.{trusted}\n"


def _on_own_records(history: RunHistory) -> str:
    """The metrics of the newest local evaluation."""
    if (evaluated := history.last_evaluated) is None:
        return ""
    told = {name: value for name, value in evaluated.metrics.items() if name.startswith(OF_CLIENTS)}
    scores = ((name.removeprefix(OF_CLIENTS), metric_text(name, value)) for name, value in told.items())
    figures = ", ".join(f"{metric_name(name)} {value}" for name, value in scores if name != RECORDS)
    own = plural(Unit.of(history.unit).name)
    return f"On the clients' own {own}, in round {evaluated.round}: {escape(figures)}; noisy, and charged.\n"


def _next(spent: float, config: RunConfig, given: Mapping[str, Value], placement: Placement) -> str:
    """The price of a tighter budget, or a baseline's privacy; where the past counts, what every dataset has spent."""
    if not config.privacy:
        private = _bold("simulate", *_options(_repeatable_settings(config, given)), *placement.options)
        price = _bold("compare", config.out, "RUN")
        return f"Next, the same with privacy, and then what it costs:\n  {private}\n  {price}"
    if config.ledger:
        ledger = _bold("ledger", "show", "--ledger", str(given.get("ledger", config.ledger)))
        return f"Next, what every dataset has spent over all runs of this ledger:\n  {ledger}"
    if config.client_terms:
        own = _bold("plan", *_options(_repeatable_settings(config, given)), *placement.options)
        return f"Next, change some client's terms, and see what they would cost:\n  {own}"
    tighter = {"epsilon": f"{_tighter(min(spent, config.epsilon)):g}"} | _repeatable_settings(config, given)
    commands = "".join(
        f"\n  {_bold(command, *_options(tighter), *placement.options)}" for command in ("plan", "simulate")
    )
    return f"Next, what a tighter budget costs, and a run of it:{commands}"


def _options(settings: Mapping[str, Value]) -> list[str]:
    """Settings as they are typed."""
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def _repeatable_settings(config: RunConfig, given: Mapping[str, Value]) -> dict[str, Value]:
    """The user's settings but those of this run alone."""
    if given.keys() & {"resume", "config"}:
        usual = resolve({"task": config.task}).public() | {"task": DEFAULT_TASK}
        given = {key: value for key, value in config.public().items() if value not in (None, "", usual[key])}
    return {key: value for key, value in given.items() if key not in _OF_THIS_RUN}


def _tighter(spent: float) -> float:
    """A round epsilon well below what was spent.

    >>> [_tighter(spent) for spent in (2.99, 1.0, 0.5, 0.0123, math.inf)]
    [1.0, 0.5, 0.2, 0.005, 1.0]
    """
    if not 0.0 < spent < math.inf:
        return 1.0
    most = 0.6 * spent
    decade = math.floor(math.log10(most))
    return max(epsilon for digit in (1, 2, 5) if (epsilon := float(f"{digit}e{decade}")) <= most)


def _bold(*words: str) -> str:
    """A command of this program, quoted for the shell."""
    return f"[bold]{escape(f'{as_typed()} {shlex.join(words)}')}[/]"
