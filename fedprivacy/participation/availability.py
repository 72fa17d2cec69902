"""Availability: the times at which each client is available, in simulated seconds since the run began."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

from fedprivacy._support.settings import ConfigError
from fedprivacy.participation.draws import DrawPurpose, Draws
from fedprivacy.participation.traces import names_trace, numbered, read_trace

FORMS = "diurnal:SHARE (above 0, below 1), or FILE.csv with the columns client, from, to"

DAY = 86_400.0
"""Number of simulated seconds in a day."""

Interval = tuple[float, float]
"""Beginning and end of an interval of time; the end is not included."""

_NEVER = (math.inf, math.inf)


class Availability(Protocol):
    """Times at which clients are available."""

    def next(self, client_id: str, at: float) -> Interval:
        """Return the client's first interval that is not over `at` that moment; it may have begun. Infinite: there is
        none.
        """
        ...

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse a run of which no client is ever available, by a `ConfigError`."""
        ...


@dataclass(frozen=True, slots=True)
class Always:
    """Every client is available all the time."""

    def next(self, client_id: str, at: float) -> Interval:
        """Return all of time."""
        return 0.0, math.inf

    def check(self, client_ids: Iterable[str]) -> None:
        """Accept any clients."""


ALWAYS = Always()


@dataclass(frozen=True, slots=True)
class Diurnal:
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

    def check(self, client_ids: Iterable[str]) -> None:
        """Accept any clients: all are available once a day."""


@dataclass(frozen=True, slots=True)
class TracedAvailability:
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
                [f"availability: '{self.file}' has a line for no client of this run; name clients by id or number."]
            )

    def _of(self, client_id: str) -> list[Interval]:
        return self.by_client.get(client_id) or self.by_client.get(numbered(client_id), [])


def availability_of(text: str, draws: Draws) -> Availability:
    """Return the availability that a setting names.

    Raises:
        ConfigError: the setting or its file has another form.
    """
    check_form(text)
    if not names_trace(text):
        return Diurnal(_share(text), draws)
    lines: dict[str, list[Interval]] = defaultdict(list)
    for client, (start, end) in read_trace("availability", text, ["from", "to"]):
        if start >= end:
            raise ConfigError([f"availability: in '{text}' {client} is there from {start:g} to {end:g}; swap the two."])
        lines[client].append((start, end))
    return TracedAvailability(text, {client: _merged(intervals) for client, intervals in lines.items()})


def check_form(text: str) -> None:
    """Refuse a setting that names no availability; no file is read.

    Raises:
        ConfigError: the setting has another form; the error names the valid ones.
    """
    if not names_trace(text) and not 0.0 < _share(text) < 1.0:
        raise ConfigError([f"availability is '{text}'; give {FORMS}."])


def _share(text: str) -> float:
    kind, _, share = text.partition(":")
    try:
        return float(share) if kind == "diurnal" else math.nan
    except ValueError:
        return math.nan


def _merged(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals that touch or overlap, in order."""
    ordered = sorted(intervals)
    ends = list(accumulate((end for _, end in ordered), max))
    gaps = [n + 1 for n, (end, (start, _)) in enumerate(zip(ends, ordered[1:], strict=False)) if start > end]
    return [(ordered[first][0], ends[after - 1]) for first, after in pairwise([0, *gaps, len(ordered)])]
