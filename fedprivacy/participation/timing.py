"""Clients on the simulated clock: how long a local step takes each, and when each is available.

`Speeds` gives the seconds of a local step, `Availability` intervals in simulated seconds since the run began. Either is
drawn from a client's id, or read from a trace: observations of real clients, as a CSV file with a header and one line
an observation. A trace names a client by its id, or by its number in the simulated split.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

from fedprivacy._support.settings import ConfigError
from fedprivacy.participation.draws import DrawPurpose, Draws

SPEED_FORMS = "equal, lognormal:SIGMA, lognormal:SIGMA:MEDIAN, or FILE.csv with the columns client, seconds"

_MOST_SPREAD = 5.0
"""Maximum value of sigma: beyond, a client in forty would be more than 20,000 times as slow as the median."""

_LONGEST = 1e9

AVAILABILITY_FORMS = "diurnal:SHARE (above 0, below 1), or FILE.csv with the columns client, from, to"

DAY = 86_400.0
"""Number of simulated seconds in a day."""

Interval = tuple[float, float]
"""Beginning and end of an interval of time; the end is not included."""

_NEVER = (math.inf, math.inf)


class Speeds(Protocol):
    """Speeds of clients."""

    def seconds(self, client_id: str) -> float:
        """Return the seconds of one local step, constant for a client over the whole run."""
        ...

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse clients whose speed is unknown, by a `ConfigError`; of any client it is known, unless a trace says."""
        return


@dataclass(frozen=True, slots=True)
class Equal(Speeds):
    """All clients are equally fast."""

    each: float = 1.0

    def seconds(self, client_id: str) -> float:
        """Return the common number of seconds."""
        return self.each


INSTANT = Equal(0.0)
"""Speeds of a run without a clock."""


@dataclass(frozen=True, slots=True)
class Lognormal(Speeds):
    """Lognormal seconds with a median and a standard deviation `sigma` of the logarithm: a few are very slow."""

    draws: Draws
    sigma: float
    median: float = 1.0

    def seconds(self, client_id: str) -> float:
        """Return the client's seconds, drawn from its id."""
        drawn = self.draws.uniform(DrawPurpose.SPEED, client_id)
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(drawn))


@dataclass(frozen=True, slots=True)
class TracedSpeeds(Speeds):
    """Speeds by a trace."""

    file: str
    by_client: Mapping[str, float] = field(repr=False)

    def seconds(self, client_id: str) -> float:
        """Return the seconds of the client's line."""
        return self.by_client[client_id if client_id in self.by_client else trace_number(client_id)]

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse clients without a line."""
        unknown = [c for c in client_ids if c not in self.by_client and trace_number(c) not in self.by_client]
        if unknown:
            raise ConfigError(f"speeds: '{self.file}' has no line for {unknown[0]}; give one for every client.")


def speeds_of(text: str, draws: Draws) -> Speeds:
    """Return the speeds that a setting names.

    Raises:
        ConfigError: the setting or its file has another form.
    """
    check_speeds(text)
    if text == "equal":
        return Equal()
    if not names_trace(text):
        return Lognormal(draws, *_sigma_and_median(text))
    found = dict(_read_trace("speeds", text, ["seconds"]))
    return TracedSpeeds(text, {client: seconds for client, (seconds,) in found.items()})


def check_speeds(text: str) -> None:
    """Refuse a setting that names no speeds; no file is read.

    Raises:
        ConfigError: the setting has another form; the error names the valid ones.
    """
    if text == "equal" or names_trace(text):
        return
    sigma, median = (*_sigma_and_median(text), 1.0)[:2]
    if not (0.0 < sigma <= _MOST_SPREAD and 0.0 < median <= _LONGEST):
        raise ConfigError(
            f"speeds is '{text}'; give {SPEED_FORMS}: SIGMA above 0, at most {_MOST_SPREAD:g}, and MEDIAN "
            "seconds above 0."
        )


def _sigma_and_median(text: str) -> list[float]:
    """Parse sigma and, if given, the median; NaN if the text has another form."""
    kind, *numbers = text.split(":")
    try:
        found = [float(number) for number in numbers]
    except ValueError:
        return [math.nan]
    return found if kind == "lognormal" and len(found) in {1, 2} else [math.nan]


class Availability(Protocol):
    """Times at which clients are available."""

    def next(self, client_id: str, at: float) -> Interval:
        """Return the client's first interval that is not over `at` that moment; infinite: there is none."""
        ...

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse a run of which no client is ever available, by a `ConfigError`; only a trace can say so of all."""
        return


@dataclass(frozen=True, slots=True)
class Always(Availability):
    """Every client is available all the time."""

    def next(self, client_id: str, at: float) -> Interval:
        """Return all of time."""
        return 0.0, math.inf


ALWAYS = Always()


@dataclass(frozen=True, slots=True)
class Diurnal(Availability):
    """Every client is available for a share of each day, from its own, uniformly distributed time of day on.

    It resembles phones that charge at night, in different time zones (Bonawitz et al. 2019, Yang et al. 2018).
    """

    share: float
    draws: Draws

    def next(self, client_id: str, at: float) -> Interval:
        """Return today's interval, yesterday's if that is not over, or tomorrow's."""
        begins, lasts = DAY * self.draws.uniform(DrawPurpose.DAY, client_id), DAY * self.share
        day = math.floor((at - begins - lasts) / DAY) + 1
        start = begins + day * DAY
        return start, start + lasts


@dataclass(frozen=True, slots=True)
class TracedAvailability(Availability):
    """Availability by a trace: a client is available between `from` and `to` of its lines, and never without a line."""

    file: str
    by_client: Mapping[str, list[Interval]] = field(repr=False)  # disjoint, in order

    def next(self, client_id: str, at: float) -> Interval:
        """Return the next interval of the client's lines."""
        intervals = self._of(client_id)
        first = bisect_right(intervals, at, key=lambda interval: interval[1])
        return intervals[first] if first < len(intervals) else _NEVER

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse a trace without a line for any of the clients."""
        if not any(map(self._of, client_ids)):
            raise ConfigError(
                f"availability: '{self.file}' has a line for no client of this run; name clients by id or number."
            )

    def _of(self, client_id: str) -> list[Interval]:
        return self.by_client.get(client_id) or self.by_client.get(trace_number(client_id), [])


def availability_of(text: str, draws: Draws) -> Availability:
    """Return the availability that a setting names.

    Raises:
        ConfigError: the setting or its file has another form.
    """
    check_availability(text)
    if not names_trace(text):
        return Diurnal(_share_of_day(text), draws)
    lines: dict[str, list[Interval]] = defaultdict(list)
    for client, (start, end) in _read_trace("availability", text, ["from", "to"]):
        if start >= end:
            raise ConfigError(f"availability: in '{text}' {client} is there from {start:g} to {end:g}; swap the two.")
        lines[client].append((start, end))
    return TracedAvailability(text, {client: _merge(intervals) for client, intervals in lines.items()})


def check_availability(text: str) -> None:
    """Refuse a setting that names no availability; no file is read.

    Raises:
        ConfigError: the setting has another form; the error names the valid ones.
    """
    if not names_trace(text) and not 0.0 < _share_of_day(text) < 1.0:
        raise ConfigError(f"availability is '{text}'; give {AVAILABILITY_FORMS}.")


def _share_of_day(text: str) -> float:
    kind, _, share = text.partition(":")
    try:
        return float(share) if kind == "diurnal" else math.nan
    except ValueError:
        return math.nan


def _merge(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap, in order."""
    ordered = sorted(intervals)
    ends = list(accumulate((end for _, end in ordered), max))
    gaps = [n + 1 for n, (end, (start, _)) in enumerate(zip(ends, ordered[1:], strict=False)) if start > end]
    return [(ordered[first][0], ends[after - 1]) for first, after in pairwise([0, *gaps, len(ordered)])]


def names_trace(text: str) -> bool:
    """Return whether a setting names a file instead of a model."""
    return text.endswith(".csv")


def _read_trace(setting: str, file: str, columns: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
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
        raise ConfigError(f"{setting} names file '{file}', which cannot be read: {why}; give its path.") from error
    lines = csv.DictReader(text.splitlines())
    if missing := [name for name in ("client", *columns) if name not in (lines.fieldnames or ())]:
        wanted = ", ".join(("client", *columns))
        raise ConfigError(f"{setting}: '{file}' has no column {missing[0]}; its first line must name {wanted}.")
    for line in lines:
        yield str(line["client"]), [_number(setting, file, lines.line_num, name, line[name]) for name in columns]


def trace_number(client_id: str) -> str:
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
    raise ConfigError(f"{setting}: line {line} of '{file}' has {column} {text!r}; give seconds, a number from 0.")
