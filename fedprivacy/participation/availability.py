"""Availability: when each client is there, in simulated seconds since the run began."""

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
"""Simulated seconds."""

Interval = tuple[float, float]
"""From a moment on, and up to another, not included."""

_NEVER = (math.inf, math.inf)


class Availability(Protocol):
    """When clients are there."""

    def next(self, client_id: str, at: float) -> Interval:
        """The client's first interval that is not over `at` that moment; it may have begun. Infinite: there is none."""
        ...

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse a run of which no client is ever there, by a `ConfigError`."""
        ...


@dataclass(frozen=True, slots=True)
class Always:
    """Everybody is there all the time."""

    def next(self, client_id: str, at: float) -> Interval:
        """All of time."""
        return 0.0, math.inf

    def check(self, client_ids: Iterable[str]) -> None:
        """Everybody is."""


ALWAYS = Always()


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A share of every day without a break, from an hour on that is each client's own and uniformly distributed.

    A phone that charges at night, in a time zone of its own (Bonawitz et al. 2019, Yang et al. 2018).
    """

    share: float
    draws: Draws

    def next(self, client_id: str, at: float) -> Interval:
        """Today's, yesterday's if that is not over, or tomorrow's."""
        begins, lasts = DAY * self.draws.uniform(DrawPurpose.DAY, client_id), DAY * self.share
        day = math.floor((at - begins - lasts) / DAY) + 1
        start = begins + day * DAY
        return start, start + lasts

    def check(self, client_ids: Iterable[str]) -> None:
        """Everybody is there once a day."""


@dataclass(frozen=True, slots=True)
class Observed:
    """As a trace says: a client is there between `from` and `to` of its lines, and one without a line never is."""

    file: str
    by_client: Mapping[str, list[Interval]] = field(repr=False)  # apart from one another, in order

    def next(self, client_id: str, at: float) -> Interval:
        """From the client's lines."""
        intervals = self._of(client_id)
        first = bisect_right(intervals, at, key=lambda interval: interval[1])
        return intervals[first] if first < len(intervals) else _NEVER

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse the trace of others."""
        if not any(map(self._of, client_ids)):
            raise ConfigError(
                [f"availability: '{self.file}' has a line for no client of this run; name clients by id or number."]
            )

    def _of(self, client_id: str) -> list[Interval]:
        return self.by_client.get(client_id) or self.by_client.get(numbered(client_id), [])


def availability_of(text: str, draws: Draws) -> Availability:
    """The availability that a setting names.

    Raises:
        ConfigError: it is of no such form, or its file is not.
    """
    check_form(text)
    if not names_trace(text):
        return Diurnal(_share(text), draws)
    lines: dict[str, list[Interval]] = defaultdict(list)
    for client, (start, end) in read_trace("availability", text, ["from", "to"]):
        if start >= end:
            raise ConfigError([f"availability: in '{text}' {client} is there from {start:g} to {end:g}; swap the two."])
        lines[client].append((start, end))
    return Observed(text, {client: _merged(intervals) for client, intervals in lines.items()})


def check_form(text: str) -> None:
    """Refuse what names no availability; no file is read.

    Raises:
        ConfigError: says what does.
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
    """Those that touch or overlap as one, in order."""
    ordered = sorted(intervals)
    ends = list(accumulate((end for _, end in ordered), max))
    gaps = [n + 1 for n, (end, (start, _)) in enumerate(zip(ends, ordered[1:], strict=False)) if start > end]
    return [(ordered[first][0], ends[after - 1]) for first, after in pairwise([0, *gaps, len(ordered)])]
