"""`fedprivacy ask`: what it would cost, what was answered, what is left."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from fedprivacy._support.console import figure_columns, text_columns
from fedprivacy.commands.terminal import OUT, as_typed, print_json
from fedprivacy.flower.server.ask_clients import AskResult
from fedprivacy.questions.constructors import parse
from fedprivacy.questions.figures import Estimate
from fedprivacy.questions.question import Question
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.questions.release import deviation
from fedprivacy.runs.plans.plan import QuestionPlan
from fedprivacy.runs.prospect import Prospect, spending
from fedprivacy.runs.settings.configuration import LEDGER
from fedprivacy.simulation.ask import ask_simulation, questionnaire, simulation_plan
from fedprivacy.values.numbers import finite_or_none, plain
from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text, plural, unit_text


def ask(
    questions: Sequence[str],
    settings: Mapping[str, Any],
    *,
    anew: bool,
    only_plan: bool,
    by_client: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Ask, or tell what asking would cost; show the answers."""
    asked = questionnaire(question for text in questions for question in parse(text))
    plan = simulation_plan(settings)
    if only_plan:
        _show_plan(plan, asked, as_json=as_json)
        return
    if anew and not (as_json or quiet):
        OUT.print(f"{_price(plan)} Without --anew, earlier answers are free.", highlight=False, soft_wrap=True)
    done = ask_simulation(plan, asked, anew=anew)
    if as_json:
        print_json(as_data(done))
    else:
        _show(done, most=len(done.told) if verbose else MOST_CLIENTS, by_client=by_client)
    if not (as_json or quiet):
        OUT.print(_outcome(done, plan), highlight=False, soft_wrap=True)
    if done.failures:
        raise typer.Exit(1)


def as_data(done: AskResult) -> dict[str, Any]:
    """The object that `--json` prints."""
    return plain(
        {
            "federation": done.federation,
            "clients": done.clients,
            "reread": done.reread,
            "failures": done.failures,
            "spent": [
                {"client_id": c.client_id, "epsilon": c.epsilon, "epsilon_before": done.before[c.client_id].epsilon}
                | {"delta": c.delta, "budget": finite_or_none(c.budget_epsilon)}
                for c in done.spent.values()
            ],
            "ledger": done.ledger,
        }
    )


def _show_plan(plan: QuestionPlan, asked: Questionnaire, *, as_json: bool) -> None:
    sigmas = asked.noise_multipliers(plan.noise.of())
    rows = [
        {
            "question": question.sentence_of(plan.unit.name),
            "noise_multiplier": sigma,
            "error_of_count": question.per_count * deviation(question, sigma),
        }
        for question, sigma in zip(asked.questions, sigmas, strict=True)
    ]
    if as_json:
        print_json({"questions": rows, **dataclasses.asdict(Prospect.of(plan))})
        return
    worth = figure_columns("sigma", "standard error of a count", wrapped=True)
    table = Table("question", *worth, title="What one client's answers would be worth", title_justify="left")
    for row in rows:
        table.add_row(escape(str(row["question"])), f"{row['noise_multiplier']:.3g}", f"{row['error_of_count']:.3g}")
    OUT.print(table)
    OUT.print(f"{_price(plan)} Nothing was asked.", highlight=False, soft_wrap=True)


def _price(plan: QuestionPlan) -> str:
    """The cost of asking, in a sentence."""
    worst = max(spending(plan), key=lambda outlook: outlook.by_round[-1])
    budget = worst.group.allowance.budget
    before, after = epsilon_text(worst.before), epsilon_text(worst.by_round[-1], budget.epsilon)
    who = f"{worst.group.client_ids[0]} and all others alike" if len(worst.group.client_ids) > 1 else ""
    return (
        f"Asking takes {who or worst.group.client_ids[0]} from epsilon {before} to {after}, of "
        f"{budget_text(budget.epsilon)} at delta {delta_text(budget.delta)}{unit_text(str(plan.unit))}."
    )


MOST_CLIENTS = 10
"""Maximum number of clients whose own answers are shown, unless all are wanted."""


def _show(done: AskResult, *, most: int, by_client: bool) -> None:
    for number, question in enumerate(done.asked.questions):
        if done.told:
            OUT.print(_table(done.unit, question, {"all clients": done.figures(number)}))
            for group, silent in done.silent(number).items():
                told = f" of {group}" if group else ""
                OUT.print(
                    f"[yellow]{count_text(len(silent), 'client')} did not tell{told}: too few {plural(done.unit)}"
                )
        if by_client:
            own = {client: done.figures(number, client) for client in sorted(done.told)[:most]}
            OUT.print(_table(done.unit, question, own))
            if (more := len(done.told) - most) > 0:
                OUT.print(f"and {count_text(more, 'more client')}: --verbose shows each, --json has them all")


def _table(unit: str, question: Question, estimates: Mapping[str, Sequence[Estimate]]) -> Table:
    grouped, several = any(question.groups), len(estimates) > 1
    whom = ["client"] * several + [question.by.column if question.by else "group"] * grouped + ["figure"]
    columns = *text_columns(*map(escape, whom)), *figure_columns("value", "standard error", "95 % interval")
    table = Table(*columns, title=escape(question.sentence_of(unit)), title_justify="left")
    for whose, rows in estimates.items():
        for figure in rows:
            named = [whose] * several + [figure.group] * grouped + [figure.name]
            table.add_row(*map(escape, named), *_numbers(figure))
    return table


def _numbers(figure: Estimate) -> tuple[str, str, str]:
    if figure.value is None or figure.error is None or figure.low is None or figure.high is None:
        return "-", "-", "-"
    # As many digits as the noise leaves a meaning to.
    decimals = max(0, 1 - math.floor(math.log10(figure.error))) if figure.error > 0.0 else 6
    value, error, low, high = (f"{n:.{decimals}f}" for n in (figure.value, figure.error, figure.low, figure.high))
    return value, error, f"{low} to {high}"


def _outcome(done: AskResult, plan: QuestionPlan) -> str:
    lines = []
    for reason, clients in sorted(Counter(done.failures.values()).items()):
        lines.append(f"[yellow]{count_text(clients, 'client')} did not answer: {escape(reason)}[/]")
    if done.reread and not done.spent:
        lines.append("Read from the ledger: nothing was spent. --anew asks again, and costs again.")
    elif done.spent:
        worst = max(done.spent.values(), key=lambda client: client.epsilon)
        lines.append(
            f"Spent: {worst.client_id} has epsilon {epsilon_text(worst.epsilon, worst.budget_epsilon)} of "
            f"{budget_text(worst.budget_epsilon)} at delta {delta_text(worst.delta)}{unit_text(str(plan.unit))}, "
            f"{epsilon_text(done.before[worst.client_id].epsilon)} before; nobody more. The answers are kept: to read "
            "them again costs nothing."
        )
    if done.told and any(question.reads for question in done.asked.questions):
        lines.append(
            f"Left out are {plural(done.unit)} with a cell that is empty, cannot be read or is in no group that was "
            "named. Their number is private: ask 'count' as well, and take a figure's own count off, for a noisy one."
        )
    own = str(Path(plan.config.out) / LEDGER)
    if done.ledger.endswith(own):
        named = ["--task", plan.config.task, "--clients", str(plan.config.clients), "--ledger", own]
        lines.append(f"Train on the same account: {as_typed()} simulate {shlex.join(named)}")
    return "\n".join(lines)
