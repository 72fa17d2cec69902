"""How a command ends when something is wrong: one clear text for each problem and an exit code, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

_ERR = Console(stderr=True)


@contextmanager
def plain_errors(*kinds: type[Exception], code: int) -> Iterator[None]:
    """Turn errors of these kinds into text on stderr and end the command with `code`.

    An error with several `problems` shows each as one of its own; its notes follow.
    """
    try:
        yield
    except kinds as error:
        for problem in getattr(error, "problems", [str(error)]):
            _ERR.print(f"[red]error:[/] {escape(problem)}", highlight=False, soft_wrap=True)
        for note in getattr(error, "__notes__", []):
            _ERR.print(escape(note), highlight=False, soft_wrap=True)
        raise typer.Exit(code) from None
