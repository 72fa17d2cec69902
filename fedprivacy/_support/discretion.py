"""Discretion about other people's code that handles secrets: what it prints is not shown, and of its errors little."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


@contextmanager
def hushed() -> Iterator[None]:
    """Show nothing of what is printed and warned of in the block: it may tell of what the code has read."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def kind_and_place(error: BaseException) -> str:
    """All that may be shown of an error: its kind, and where it was raised. Its text may hold values."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
