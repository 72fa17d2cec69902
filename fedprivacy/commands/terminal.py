"""Functions that all commands share: printing, the words that the user typed, and the end when something is wrong."""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from fedprivacy._support.imports import installed, requirement, runs_by_uvx
from fedprivacy._support.logs import FORMAT, LogFormat, writes_json

log = logging.getLogger("fedprivacy")

OUTPUT = "What to print?"
"""Heading of the options of the output in a command's help."""

OUT = Console(emoji=False)
PLAIN = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
ERR = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON object and nothing else.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", rich_help_panel=OUTPUT, help="Show every client, and the machine.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Print the result in one line, and errors.")
]


LogForm = Annotated[
    LogFormat, typer.Option("--log-format", rich_help_panel=OUTPUT, envvar=FORMAT, help="Form of the log on stderr.")
]
LogTo = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        rich_help_panel=OUTPUT,
        help="File for the log, instead of stderr; a new one is begun at 10 MB, and five are kept.",
        show_default=False,
    ),
]


def print_what_the_terminal_lacks_as_ascii() -> None:
    """Let no character that the terminal's encoding lacks end a command: its nearest ASCII is printed instead."""
    codecs.register_error(_NEAREST, _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NEAREST)


_NEAREST = "fedprivacy.nearest"


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """A space for a no-break space, an e for an accented one, and a question mark for what has no likeness."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = (unicodedata.normalize("NFKD", each) for each in error.object[error.start : error.end])
    return "".join(each.encode("ascii", "ignore").decode() or "?" for each in lacking), error.end


def print_error(word: str, problem: object) -> None:
    """Print a problem on stderr, as it is: names of files and tasks may look like markup or emoji."""
    ERR.print(Text.assemble((f"{word}:", "red"), f" {problem}"))


def print_json(value: object) -> None:
    """Print a value on a line, for whoever reads it at once."""
    print(json.dumps(value), flush=True)  # noqa: T201 - the command's output


def print_answer(data: Callable[[], object], page: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Print the answer of a command: `data` as a line of JSON for programs, or its `page` for people."""
    if as_json:
        print_json(data())
    else:
        OUT.print(page(), highlight=False)


def as_typed() -> str:
    """The call of this program, quoted for the shell; a program that `python -m` started is called like that again."""
    path = Path(sys.argv[0])
    if runs_by_uvx():
        return f"uvx --from {requirement([extra for extra, there in installed().items() if there])} fedprivacy"
    return f"{_program_name(Path(sys.executable))} -m fedprivacy" if path.name == "__main__.py" else _program_name(path)


def _program_name(program: Path) -> str:
    """A program by its name where the shell finds it, else by its path from here."""
    if shutil.which(program.name) == str(program):
        return program.name
    return shlex.quote(str(program.relative_to(Path.cwd()) if program.is_relative_to(Path.cwd()) else program))


def _error_text(error: Exception) -> str:
    """An error as text; of a file that cannot be used, with the remedy."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"there is no file '{error.filename}'; name one that is there."
    if isinstance(error, FileExistsError):
        return f"'{error.filename}' is there already; name a new file."
    return f"'{error.filename}' cannot be used ({error.strerror}); name another file."


@contextmanager
def plain_errors(*kinds: type[Exception], code: int, traceback: bool = False) -> Iterator[None]:
    """Turn errors of these kinds into text on stderr and end the command with `code`: one clear text, no traceback.

    An error with several `problems` shows each as one of its own; its notes follow. With `traceback`, where it came
    from is shown before. Where the log is in JSON, each is an event.
    """
    try:
        yield
    except kinds as error:
        if traceback:
            from rich.traceback import Traceback  # it brings a syntax highlighter, which every command would wait for

            ERR.print(Traceback.from_exception(type(error), error, error.__traceback__))
        problems, notes = getattr(error, "problems", [_error_text(error)]), getattr(error, "__notes__", [])
        if writes_json():
            for each in (*problems, *notes):
                log.error("%s", each)
            raise typer.Exit(code) from None
        for problem in problems:
            print_error("error", problem)
        for note in notes:
            ERR.print(note)
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
        if os.getpid() != owner:  # forked a moment ago, to become another program: it has nothing to put in order
            os.kill(os.getpid(), number)
        os.write(2, b"\nStopping. Ctrl-C once more ends at once.\n")  # no stream: it may be in the middle of a write
        raise StoppedBySignal(number)

    heeded, owner = {}, os.getpid()
    if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        heeded = {number: handler for number, handler in found.items() if handler != signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        for note in getattr(stopped, "__notes__", []):
            ERR.print(note)
        raise typer.Exit(128 + getattr(stopped, "number", signal.SIGINT)) from None
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
