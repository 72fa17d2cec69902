"""A run's progress as a bar, in a terminal or a notebook."""

from __future__ import annotations

import math
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedprivacy.runs.plan import RunPlan
from fedprivacy.values.rounds import RoundResult
from fedprivacy.values.wording import budget_text, epsilon_text


def console_of(*, shown: bool) -> Console:
    """Where progress goes: to stderr, or into a notebook's cell, as text where nothing there can draw a widget."""
    console = Console(stderr=True, quiet=not shown)
    if console.is_jupyter and find_spec("ipywidgets") is None:
        return Console(stderr=True, quiet=not shown, force_jupyter=False, force_terminal=True)
    return console


class RoundProgress:
    """A live bar: round, the task's first metric, the largest epsilon spent. An observer of rounds.

    Args:
        console: where to draw.
        plan: the run's public numbers.
        finished: rounds that a run which goes on has behind it.
    """

    def __init__(self, console: Console, plan: RunPlan, finished: int = 0) -> None:
        self._metric = plan.task.metric
        self._budget = plan.config.epsilon
        self._bar = Progress(
            TextColumn("[bold]round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
        )
        state = "waiting for clients" if finished < plan.config.rounds else "finished"
        self._rounds = self._bar.add_task(state, total=plan.config.rounds, completed=finished)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, record: RoundResult) -> None:
        """Show a finished round."""
        value = record.metrics.get(self._metric)
        measured = "" if value is None else f"{self._metric} {value:.3f}  "
        spent = f"largest epsilon {epsilon_text(record.max_epsilon, self._budget)}{_of(self._budget)}"
        self._bar.update(self._rounds, completed=record.round, description=f"{measured}[cyan]{spent}")


def _of(epsilon: float) -> str:
    return f" of {budget_text(epsilon)}" if math.isfinite(epsilon) else ""
