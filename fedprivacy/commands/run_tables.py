"""What a run looks like in a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from fedprivacy.runs.history import RunHistory
from fedprivacy.runs.plan import ClientGroup, RunPlan
from fedprivacy.values.wording import NO_PRIVACY, budget_text, count_text, reading_text

_MOST_GROUPS = 6
"""Columns of a plan."""


def client_table(history: RunHistory) -> Table:
    """Every client: rounds joined, sigma, q, epsilon spent, budget left."""
    clients, facts = list(history.last.spent.values()), history.facts
    title = "Privacy spent by each client (server's view, over all rounds and runs)"
    caption = (
        f"{_limit(clients[0].budget_epsilon)}, delta {clients[0].delta:g}; accountant PLD; "
        f"{history.relation} relation. {reading_text(clients[0].budget_epsilon)}"
    )
    if not facts.private:
        title, caption = (
            f"A baseline: {NO_PRIVACY}",
            "No clipping and no noise: nothing was charged, nothing is bounded.",
        )
    table = Table(title=title, title_justify="left", caption=caption)
    table.add_column("client")
    for column in ("rounds", "steps", "q", "sigma", "epsilon", "left"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for client in clients:
        table.add_row(
            client.client_id,
            str(client.rounds),
            str(client.steps),
            f"{client.sampling_rate:.3g}",
            f"{history.noise_multiplier:.3f}" if facts.private else "none",
            facts.epsilon_text(client.epsilon, client.budget_epsilon),
            f"{client.steps_left} steps" if client.limited else "unlimited",  # epsilons cannot be subtracted
            "[yellow]exhausted" if client.exhausted else "[green]active",
        )
    return table


def failures(history: RunHistory) -> list[str]:
    """One line for each client that failed, with how often and why."""
    count = Counter(item for record in history.rounds for item in record.failures.items())
    return [
        f"{client_id}: {reason} in {count_text(rounds, 'round')}"
        for (client_id, reason), rounds in sorted(count.items())
    ]


def plan_table(plan: RunPlan, groups: Sequence[tuple[ClientGroup, Sequence[float]]]) -> Group:
    """Epsilon by round, for every group of clients with one past; of many for three: least, middling and most spent."""
    chosen = ""
    if len(groups) > _MOST_GROUPS:
        chosen = f"; of {len(groups)} that differ, those that spend least, middling and most"
        by_loss = sorted(groups, key=lambda group: group[1][-1])
        groups = [by_loss[0], by_loss[len(by_loss) // 2], by_loss[-1]]
    clients = [group.client_ids for group, _ in groups]
    table = Table("round", *(ids[0] if len(ids) == 1 else count_text(len(ids), "client") for ids in clients))
    for column in table.columns:
        column.justify = "right"
    for index in _shown_rounds(plan.config.rounds):
        table.add_row(str(index + 1), *(f"{epsilons[index]:.4f}" for _, epsilons in groups))
    config = plan.config
    rate = f"{config.sampling_rate:g}" if config.batch_size is None else f"{config.batch_size:g} / shard size"
    return Group(
        f"Every local step: sampling rate {rate}, noise multiplier {plan.noise_multiplier:.4f}; "
        f"{count_text(config.local_steps, 'local step')} a round.",
        "Epsilon of a client that joins every round, by PLD, "
        f"at delta {config.delta:g} ({_limit(config.epsilon)}){chosen}:",
        table,
    )


def _shown_rounds(rounds: int, most: int = 12) -> list[int]:
    """Indices of at most `most` rounds, evenly spread, with the first and the last."""
    shown = min(rounds, most)
    return sorted({round(i * (rounds - 1) / max(shown - 1, 1)) for i in range(shown)})


def _limit(epsilon: float) -> str:
    return f"budget epsilon {budget_text(epsilon)}" if math.isfinite(epsilon) else "no budget"
