"""Progress of an audit, for people who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from fedprivacy._support.console import Bar


@contextmanager
def progress_on(console: Console) -> Iterator[Callable[[str], None]]:
    """Show a line for each part of an audit, with the time that it took so far; at the end all of them are gone.

    Yields:
        A function to call with the name of each part when it begins.
    """
    columns = SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), TimeElapsedColumn()
    with Bar(*columns, console=console, transient=True) as lines:

        def tell(doing: str) -> None:
            for before in lines.task_ids:
                lines.update(before, completed=1.0)
            lines.add_task(f"auditing: {doing}", total=1.0)

        yield tell
