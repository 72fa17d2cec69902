"""Discretion about other people's code that handles secrets: hide what it prints and most of what its errors say."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


@contextmanager
def hushed() -> Iterator[None]:
    """Hide everything that the block prints or warns of: it may reveal what the code has read."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def kind_and_place(error: BaseException) -> str:
    """Describe an error by its kind and the place where it was raised; its text may hold values and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
