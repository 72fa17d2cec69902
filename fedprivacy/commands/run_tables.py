"""A run that has not begun, in a terminal: what its plan costs each client, and recommended settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Column, Table

from fedprivacy._support.console import compact_table, figure_columns, text_columns
from fedprivacy.accounting.spend import MOST_RUNS
from fedprivacy.commands.terminal import OUT, as_typed, print_json
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.prospect import Outlook
from fedprivacy.runs.recommendation import recommendation
from fedprivacy.values.spent import FOR_WHOM
from fedprivacy.values.wording import budget_text, count_text, epsilon_text, noise_text, proved_text, unit_text

_MOST_GROUPS = 5
"""Columns of a plan."""


def plan_text(plan: TrainingPlan, outlooks: Sequence[Outlook]) -> str:
    """The noise of a plan and the largest epsilon that it would spend, in one line."""
    most = max(outlooks, key=_loss)
    epsilon, noises = epsilon_text(_loss(most), _most(most)), [_sigma(outlook) for outlook in outlooks]
    rounds, delta = count_text(plan.config.rounds, "round"), plan.config.delta
    return (
        f"{_noise_text(plan, noises)}; epsilon {epsilon} at delta {delta:g} after {rounds}{unit_text(str(plan.unit))}"
    )


def plan_table(plan: TrainingPlan, outlooks: Sequence[Outlook]) -> Group:
    """Epsilon by round, for every group of clients with one past; of many for three: least, middling and most spent."""
    chosen, noises = "", [outlook.group.event.noise_multiplier for outlook in outlooks]
    if len(outlooks) > _MOST_GROUPS:
        by, most = (_sigma, "add") if plan.noise_by_rate else (_loss, "spend")
        chosen = f"; of {len(outlooks)} that differ, those that {most} least, middling and most"
        ranked = sorted(outlooks, key=by)
        outlooks = [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    table = compact_table(*figure_columns("round", *map(_names, outlooks), wrapped=True))
    rounds, shown = plan.config.rounds, min(plan.config.rounds, 10)
    for index in sorted({round(i * (rounds - 1) / max(shown - 1, 1)) for i in range(shown)}):  # evenly spread
        table.add_row(
            str(index + 1), *(epsilon_text(outlook.by_round[index], _most(outlook), 4) for outlook in outlooks)
        )
    config = plan.config
    rate = f"{config.sampling_rate:g}" if config.batch_size is None else f"{config.batch_size:g} / shard size"
    others = " of a client without terms of its own" if plan.client_terms else ""
    every = config.local_evaluation
    evaluations = f", and one more every {count_text(every, 'round')} for a local evaluation" if every else ""
    several = config.spend is not None or any(outlook.group.past for outlook in outlooks)
    first = []
    if cost := max((outlook.question for outlook in outlooks), default=0.0):
        asked = plan.standardise.words if plan.standardise else ""
        first = [
            f"Before the first round clients are asked once, privately: {asked}. "
            f"It takes epsilon {epsilon_text(cost)} of a client."
        ]
    return Group(
        *first,
        f"Every local step{others}: sampling rate {rate}, {_noise_text(plan, noises)}; "
        f"{count_text(config.local_steps, 'local step')} a round{evaluations}.",
        *([_terms_table(outlooks)] if plan.client_terms or plan.noise_by_rate else []),
        *_user_level_text(plan),
        "Epsilon of a client that joins every round, by PLD, "
        f"at delta {config.delta:g} ({_limit(plan.common_budget) if not plan.client_terms else 'see above'})"
        f"{unit_text(str(plan.unit))}{chosen}:",
        table,
        *([_budget_table(plan, outlooks)] if several else []),
    )


def recommend(settings: dict[str, Any], shard_size: float | None, *, as_json: bool) -> None:
    """Recommend settings and show them; see the command's help."""
    found = recommendation(settings, shard_size=shard_size)
    command = f"{as_typed()} simulate {found.options}"
    if as_json:
        told = {"settings": found.settings, "command": command, "call": found.call}
        print_json(dataclasses.asdict(found) | told)
        return
    table = Table(Column("setting", no_wrap=True), Column("value", justify="right"), "why", title_justify="left")
    table.title = f"For {escape(found.task)} at epsilon {found.budget.epsilon:g}, delta {found.budget.delta:g}"
    table.caption = f"From public facts alone: {found.facts}. No record was looked at."
    for choice in found.choices:
        table.add_row(choice.key, str(choice.value), choice.why)
    OUT.print(table)
    OUT.print(
        f"The budget then needs the noise multiplier {found.noise_multiplier:.3g}. The noise of all steps is "
        f"{found.loudness:.1%} as long as the whole path."
    )
    for words in found.advice:
        OUT.print(f"[yellow]{escape(words)}")
    OUT.print(f"\n[bold]{escape(command)}[/]\n\n{escape(found.call)}", highlight=False, soft_wrap=True)


def _most(outlook: Outlook) -> float:
    return outlook.group.allowance.budget.epsilon


def _sigma(outlook: Outlook) -> float:
    return outlook.group.event.noise_multiplier


def _loss(outlook: Outlook) -> float:
    return outlook.by_round[-1]


def _noise_text(plan: TrainingPlan, noises: Sequence[float]) -> str:
    """The run's noise multiplier, or those of its clients."""
    if (common := plan.noise.shared) is None:
        return f"each client's own noise multiplier ({noise_text(min(noises), max(noises))})"
    return f"noise multiplier {common:.4f}"


def _user_level_text(plan: TrainingPlan) -> list[str]:
    """The guarantee of the server's own noise over all rounds, for those who see the models; one line, or none."""
    if (user_level := plan.user_level) is None:
        return []
    event, rounds = user_level.mechanism.event, min(plan.config.rounds, user_level.rounds_left)
    return [
        f"Each client as a whole ({FOR_WHOM}): joins with probability {event.sampling_rate:g}, noise multiplier "
        f"{event.noise_multiplier:.4f}; epsilon {epsilon_text(user_level.epsilon(rounds))} at delta "
        f"{user_level.budget.delta:g} after {count_text(rounds, 'round')}, never added to what follows."
    ]


def _terms_table(outlooks: Sequence[Outlook]) -> Table:
    """The local step of each group of clients, and the budget that it is charged to."""
    headings = "budget", "sampling rate", "noise multiplier"
    table = compact_table(*text_columns(""), *figure_columns(*headings, wrapped=True))
    for outlook in outlooks:
        event, budget = outlook.group.event, outlook.group.allowance.budget.epsilon
        table.add_row(_names(outlook), _budget(budget), f"{event.sampling_rate:g}", f"{event.noise_multiplier:.4f}")
    return table


def _budget(epsilon: float) -> str:
    return budget_text(epsilon) if math.isfinite(epsilon) else "none"


def _budget_table(plan: TrainingPlan, outlooks: Sequence[Outlook]) -> Group:
    """The run's share of each budget, what is left of it, and for how many such runs."""
    headings = "budget", "spent before", "this run", "left", "such runs left"
    table = Table(*text_columns(""), *figure_columns(*headings, wrapped=True))
    for outlook in outlooks:
        budget, after = outlook.group.allowance.budget.epsilon, outlook.by_round[-1]
        runs = "no limit" if outlook.runs_left is None else str(outlook.runs_left)
        table.add_row(
            _names(outlook),
            _budget(budget),
            epsilon_text(outlook.before, budget),
            epsilon_text(after - outlook.before),
            proved_text(outlook.left) if math.isfinite(budget) else "no limit",
            f"more than {MOST_RUNS - 1}" if outlook.runs_left == MOST_RUNS else runs,
        )
    filters = sorted({outlook.group.allowance.filter for outlook in outlooks})
    solved = [plan.finds_noise(outlook.group.client_ids[0]) for outlook in outlooks]
    noise = "each with noise of its own" if any(solved) else "with this noise"
    return Group(
        "What the run takes of each client's budget, in epsilon composed with all runs before:",
        table,
        f"Such runs: as many steps, {noise}. The budget is kept by the {' and the '.join(filters)} filter, which may "
        "stop before all of it is read.",
    )


def _names(outlook: Outlook) -> str:
    """The client or the number of clients that a column or a row describes."""
    client_ids = outlook.group.client_ids
    return client_ids[0] if len(client_ids) == 1 else count_text(len(client_ids), "client")


def _limit(epsilon: float) -> str:
    return f"budget epsilon {budget_text(epsilon)}" if math.isfinite(epsilon) else "no budget"
