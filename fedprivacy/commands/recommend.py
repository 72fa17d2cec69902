"""`fedprivacy recommend`: settings for private training, each with its reason, and the line that trains with them."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from fedprivacy.commands.terminal import OUT, as_typed, print_json


def recommend(settings: dict[str, Any], shard_size: float | None, *, as_json: bool) -> None:
    """Recommend settings and show them; see the command's help."""
    from fedprivacy.runs.recommendation import recommendation

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
