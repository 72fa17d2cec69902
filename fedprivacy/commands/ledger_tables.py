"""A ledger's tables in a terminal, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy import func, select

from fedprivacy._support.console import figure_columns, text_columns
from fedprivacy.accounting import more_runs, pld
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.spend import shortage
from fedprivacy.ledger.charges import NOTHING_SPENT, BudgetChange, held_of
from fedprivacy.ledger.errors import no_dataset
from fedprivacy.ledger.kept_answers import AskedQuestion
from fedprivacy.ledger.schema import ChargeState
from fedprivacy.ledger.schema import charges as charge_table
from fedprivacy.ledger.store import Ledger
from fedprivacy.questions.questionnaire import describe
from fedprivacy.values.attempt import QUESTIONS
from fedprivacy.values.budget import Allowance
from fedprivacy.values.events import Claims, Event, PoissonSampledGaussian, as_fields
from fedprivacy.values.numbers import plain
from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text, run_text, words_of_what_is_left

_MOST_ROWS = 50
_ANY_WIDTH = 10_000
_TITLE = "Privacy spent by each dataset (server's view, over all runs)"
_CAPTION = "Accountant PLD. Open: charges without a receipt; they count."


@dataclass(frozen=True, slots=True)
class DatasetSpent:
    """A dataset's charges over all runs, and its budget.

    `epsilon` is by PLD, at the budget's `delta`, for the server's view; infinite: none is guaranteed. An infinite
    `budget` only measures. `runs_left` is how many more runs like the last that trained on it (`last_steps` steps, the
    same noise) the budget allows; None: none did, or there is no budget. `open` charges have no receipt; they count.
    `expires` is in ISO 8601; empty: never. `shortage` says why there is no run left, and what helps, of one dataset.
    """

    dataset_id: str
    epsilon: float
    delta: float
    budget: float
    steps: int
    charges: int
    open: int
    expires: str
    last_steps: int
    runs_left: int | None
    shortage: str = ""


def datasets(ledger: Ledger, only: str = "") -> list[DatasetSpent]:
    """Every dataset of a ledger, or one. Raises LedgerError: there is no such dataset."""
    ids = [only] if only else ledger.dataset_ids()
    allowances, accounts, open_charges = ledger.allowances(ids), ledger.accounts(ids), _open_charges(ledger)
    last_runs = _last_runs(ledger)
    if only and only not in allowances:
        raise no_dataset(ledger.name, only, ledger.dataset_ids())
    return [
        DatasetSpent(
            dataset_id=dataset_id,
            epsilon=_epsilon(frozenset(account.history.items()), allowance.budget.delta),
            delta=allowance.budget.delta,
            budget=allowance.budget.epsilon,
            steps=sum(account.history.values()),
            charges=account.rounds,
            open=open_charges.get(dataset_id, 0),
            expires=f"{allowance.expires:%Y-%m-%d}" if allowance.expires else "",
            last_steps=last_steps,
            runs_left=left,
            shortage=shortage(filter_of(allowance), account.history, event, last_steps)
            if only and left == 0 and isinstance(event, PoissonSampledGaussian) and not allowance.expired
            else "",
        )
        for dataset_id in ids
        for allowance, account in [(allowances[dataset_id], accounts.get(dataset_id, NOTHING_SPENT))]
        for event, last_steps in [last_runs.get(dataset_id, (None, 0))]
        for left in [_runs_left(allowance, frozenset(account.history.items()), event, last_steps) if event else None]
    ]


def charges(ledger: Ledger, dataset_id: str) -> list[dict[str, Any]]:
    """A dataset's charges, in the order in which they were made."""
    shown = [column for column in charge_table.c if column.name not in ("charge_id", "dataset_id")]
    mine = select(*shown).where(charge_table.c.dataset_id == dataset_id).order_by(charge_table.c.charge_id)
    with ledger.database.reading() as connection:
        return [dict(row) for row in connection.execute(mine).mappings()]


def as_json(
    datasets: Sequence[DatasetSpent],
    charges: Sequence[dict[str, Any]],
    questions: Sequence[AskedQuestion],
    budgets: Sequence[BudgetChange],
) -> dict[str, Any]:
    """JSON has no infinity: a budget that only measures, or an epsilon that nothing bounds, is null."""
    shown: dict[str, Any] = {"datasets": [plain(dataset) for dataset in datasets]}
    shown |= {"charges": list(charges)} if charges else {}
    shown |= {"budgets": [change._asdict() for change in budgets]} if budgets else {}
    return shown | ({"questions": [_question_as_json(question) for question in questions]} if questions else {})


def _question_as_json(asked: AskedQuestion) -> dict[str, Any]:
    """A question as JSON: the text by which its answers are found, and how many datasets were charged which event."""
    events = [as_fields(event) | {"datasets": count} for event, count in asked.charged.items()]
    return asked.attempt._asdict() | asked._asdict() | {"attempt": asked.attempt.attempt, "charged": events}


def page(
    datasets: Sequence[DatasetSpent],
    charges: Sequence[dict[str, Any]],
    questions: Sequence[AskedQuestion],
    budgets: Sequence[BudgetChange],
    console: Console,
) -> Group:
    """Datasets as a table, or a list where a name would not fit; below it what is known of one, and what was asked."""
    table = _dataset_table(datasets)
    needed = Measurement.get(console, console.options.update(width=_ANY_WIDTH), table).maximum
    shown: list[RenderableType] = [table if needed <= console.width else _dataset_list(datasets)]
    shown += [Text(d.shortage) for d in datasets if d.shortage]
    shown += [_budget_table(budgets)] if budgets else []
    shown += [_charge_table(charges)] if charges else []
    return Group(*shown, *([_question_table(questions)] if questions else []))


def _dataset_table(datasets: Sequence[DatasetSpent]) -> Table:
    expire = any(d.expires for d in datasets)
    spent = figure_columns("epsilon", "budget", "left", "delta", "steps", "charges", "open", *["expires"] * expire)
    table = Table(Column("dataset", no_wrap=True), *spent, title=_TITLE, title_justify="left")
    table.caption = f"{_CAPTION} Left: runs like the dataset's last one.{_more(datasets)}"
    for d in datasets[:_MOST_ROWS]:
        epsilons = epsilon_text(d.epsilon, d.budget), _budget(d), _runs(d), delta_text(d.delta)
        counts = str(d.steps), str(d.charges), str(d.open)
        table.add_row(d.dataset_id, *epsilons, *counts, *[d.expires or "never"] * expire)
    return table


def _dataset_list(datasets: Sequence[DatasetSpent]) -> Group:
    """The same where there is no room for a table: a name is never cut, it goes on in the next line."""
    lines: list[RenderableType] = [Text(_TITLE, style="italic")]
    for d in datasets[:_MOST_ROWS]:
        spent = f"epsilon {epsilon_text(d.epsilon, d.budget)}, budget {_budget(d)}, at delta {delta_text(d.delta)}"
        counts = f"{count_text(d.steps, 'step')} in {count_text(d.charges, 'charge')}, {d.open} open"
        lines.append(Text(d.dataset_id, style="bold", overflow="fold"))
        left = words_of_what_is_left(d.budget - d.epsilon, d.runs_left, d.last_steps, charged=d.charges > 0)
        facts = spent, left, f"{counts}; expires {d.expires or 'never'}"
        lines += [Padding(Text(fact), (0, 0, 0, 2)) for fact in facts]
    return Group(*lines, Text(f"{_CAPTION}{_more(datasets)}", style="dim"))


def _budget(d: DatasetSpent) -> str:
    return budget_text(d.budget) if math.isfinite(d.budget) else "none"


def _runs(d: DatasetSpent) -> str:
    return "-" if d.runs_left is None else count_text(d.runs_left, "run")


def _more(datasets: Sequence[DatasetSpent]) -> str:
    more = len(datasets) - _MOST_ROWS
    return f" And {count_text(more, 'dataset')} more: --json shows all." if more > 0 else ""


def _budget_table(budgets: Sequence[BudgetChange]) -> Table:
    facts = [Column(heading, no_wrap=True) for heading in ("since", "epsilon", "delta", "expires")]
    who = Column("by", overflow="fold", max_width=20)
    table = Table(*facts, who, *text_columns("why"), title="Its budgets", title_justify="left")
    for change in budgets[-_MOST_ROWS:]:
        epsilon = "none" if change.epsilon is None else budget_text(change.epsilon)
        ends, why = (change.expires or "never")[:10], "the first run's" if change.reason is None else change.reason
        table.add_row(change.at[:10], epsilon, delta_text(change.delta), ends, Text(change.by or "-"), Text(why))
    return table


def _charge_table(charges: Sequence[dict[str, Any]]) -> Table:
    run = Column("run", overflow="fold", min_width=9)
    table = Table(
        run, *figure_columns("round", "attempt", "steps", "q", "sigma", "entry"), "state", title_justify="left"
    )
    table.title = f"Its last {min(len(charges), _MOST_ROWS)} of {len(charges)} charges"
    if any(not c["round"] for c in charges[-_MOST_ROWS:]):
        table.caption = "Round -: steps that only the client's own book had counted."
    for c in charges[-_MOST_ROWS:]:
        amounts = c["round"] or "-", c["attempt"], c["steps"]
        rates = f"{c['sampling_rate']:.4g}", f"{c['noise_multiplier']:.4g}"
        table.add_row(run_text(c["run_id"]), *map(str, amounts), *rates, str(c["entry"]), c["state"])
    return table


def _question_table(questions: Sequence[AskedQuestion]) -> Table:
    """A row for each question; its own sigma is more than that of the charge if others were asked together with it."""
    shown = questions[-_MOST_ROWS:]
    of_all = f": the last {len(shown)} of {len(questions)} questions" if len(shown) < len(questions) else ""
    table = Table(*text_columns("question"), *figure_columns("sigma", "answered", "on"), title_justify="left")
    table.title = f"What was asked{of_all}"
    table.caption = "Answers are kept, and free to reread. Sigma: of the question alone."
    for asked in shown:
        sigma = "-" if asked.noise_multiplier is None else f"{asked.noise_multiplier:.4g}"
        answered = f"{asked.answered} of {sum(asked.charged.values())}"
        table.add_row(Text(describe(asked.question)), sigma, answered, asked.at[:10])
    return table


def _open_charges(ledger: Ledger) -> dict[str, int]:
    reserved = charge_table.c.state == ChargeState.RESERVED
    counted = select(charge_table.c.dataset_id, func.count()).where(reserved).group_by(charge_table.c.dataset_id)
    with ledger.database.reading() as connection:
        return {str(dataset_id): int(count) for dataset_id, count in connection.execute(counted)}


def _last_runs(ledger: Ledger) -> dict[str, tuple[Event, int]]:
    """One step of the last run that trained on each dataset, and how many it took, by dataset_id."""
    trained = charge_table.c.round > 0, ~charge_table.c.run_id.startswith(QUESTIONS, autoescape=True)
    counts = charge_table.c.state != ChargeState.VOID, *trained
    newest = select(func.max(charge_table.c.charge_id)).where(*counts).group_by(charge_table.c.dataset_id)
    with ledger.database.reading() as connection:
        last = connection.execute(
            select(charge_table.c.dataset_id, charge_table.c.run_id).where(charge_table.c.charge_id.in_(newest))
        ).all()
    of_run: dict[str, list[str]] = {}
    for dataset_id, run_id in last:
        of_run.setdefault(run_id, []).append(dataset_id)
    return {
        dataset_id: next(iter(account.history.items()))
        for run_id, ids in of_run.items()
        for dataset_id, account in ledger.accounts_in_run(run_id, ids).items()
    }


@cache
def _runs_left(allowance: Allowance, history: frozenset[tuple[Event, int]], event: Event, steps: int) -> int | None:
    if not allowance.budget.enforced:
        return None
    return 0 if allowance.expired else more_runs(filter_of(allowance), dict(history), event, steps)


@cache
def _epsilon(history: frozenset[tuple[Event, int]], delta: float) -> float:
    try:
        return pld.epsilon(dict(history), delta)
    except ValueError:  # mechanisms that no theorem composes: one such dataset must not hide all others
        return float("inf")


def reconciliation(ledger: Ledger, dataset_id: str, claims: Claims) -> Table:
    """Make a table of both figures for each run and event that the client knows."""
    table = Table(title="Steps, by run", title_justify="left", caption="The larger of both counts.")
    table.add_column("run")
    for column in ("q", "sigma", "client", "ledger", "added"):
        table.add_column(column, justify="right")
    with ledger.database.reading() as connection:
        for (run_id, event), held in held_of(connection, dataset_id, claims).items():
            claimed = claims[run_id, event]
            rates = f"{event.sampling_rate:.4g}", f"{event.noise_multiplier:.4g}"
            table.add_row(run_text(run_id), *rates, str(claimed), str(held), str(max(0, claimed - held)))
    return table
