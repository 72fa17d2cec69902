"""Traces: observations of real clients, as CSV files with a header and one line an observation.

A client is named by its id, or by its number in the simulated split.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedprivacy._support.settings import ConfigError


def names_trace(text: str) -> bool:
    """Return whether a setting names a file instead of a model."""
    return text.endswith(".csv")


def read_trace(setting: str, file: str, columns: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    """Yield the client of every line, and its numbers.

    Args:
        setting: name of the setting, for the errors.
        file: path of the file.
        columns: columns of the numbers; others are not read.

    Raises:
        ConfigError: the file cannot be read, lacks a column, or holds a value that is no number or negative. The error
            names the line.
    """
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError([f"{setting} names file '{file}', which cannot be read: {why}; give its path."]) from error
    lines = csv.DictReader(text.splitlines())
    if missing := [name for name in ("client", *columns) if name not in (lines.fieldnames or ())]:
        wanted = ", ".join(("client", *columns))
        raise ConfigError([f"{setting}: '{file}' has no column {missing[0]}; its first line must name {wanted}."])
    for line in lines:
        yield str(line["client"]), [_number(setting, file, lines.line_num, name, line[name]) for name in columns]


def numbered(client_id: str) -> str:
    """Return a simulated client's number in its split, by which traces may name it: '7' for 'client-07'."""
    digits = client_id.rpartition("-")[2]
    return str(int(digits)) if digits.isdecimal() else client_id


def _number(setting: str, file: str, line: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if value >= 0.0:
        return value
    raise ConfigError([f"{setting}: line {line} of '{file}' has {column} {text!r}; give seconds, a number from 0."])
