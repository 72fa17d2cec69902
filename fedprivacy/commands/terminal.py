"""What every command shares: where it prints, what the user typed, and how it ends when something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

OUT = Console()
PLAIN = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(value: object) -> None:
    """Print a value on a line, for whoever reads it at once."""
    print(json.dumps(value), flush=True)  # noqa: T201 - the command's output


def as_typed() -> str:
    """How to call this program again: by its name where the shell finds it, else by its path from here."""
    program = sys.argv[0]
    path = Path(program)
    if shutil.which(path.name) == str(path):
        return path.name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else program


@contextmanager
def plain_errors(*kinds: type[Exception], code: int) -> Iterator[None]:
    """Turn errors of these kinds into text on stderr and end the command with `code`: one clear text, no traceback.

    An error with several `problems` shows each as one of its own; its notes follow.
    """
    try:
        yield
    except kinds as error:
        for problem in getattr(error, "problems", [str(error)]):
            ERR.print(f"[red]error:[/] {escape(problem)}")
        for note in getattr(error, "__notes__", []):
            ERR.print(escape(note))
        raise typer.Exit(code) from None


class StoppedBySignal(KeyboardInterrupt):
    """Ctrl-C, or the SIGTERM of a scheduler; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block as a `KeyboardInterrupt` does, then the command, with 128 + the signal.

    What the error's notes say comes last. A second signal ends the process at once: whatever is on the disk bears that.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in heeded:
            signal.signal(each, signal.SIG_DFL)
        os.write(2, b"\nStopping. Ctrl-C once more ends at once.\n")  # no stream: it may be in the middle of a write
        raise StoppedBySignal(number)

    heeded = {}
    if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        heeded = {number: handler for number, handler in found.items() if handler != signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        for note in getattr(stopped, "__notes__", []):
            ERR.print(escape(note))
        raise typer.Exit(128 + getattr(stopped, "number", signal.SIGINT)) from None
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
