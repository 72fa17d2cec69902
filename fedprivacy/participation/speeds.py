"""Speeds: the number of simulated seconds that a local step takes on each client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol

from fedprivacy._support.settings import ConfigError
from fedprivacy.participation.draws import DrawPurpose, Draws
from fedprivacy.participation.traces import names_trace, numbered, read_trace

FORMS = "equal, lognormal:SIGMA, lognormal:SIGMA:MEDIAN, or FILE.csv with the columns client, seconds"

_MOST_SPREAD = 5.0
"""Maximum value of sigma: beyond, a client in forty would be more than 20,000 times as slow as the median."""

_LONGEST = 1e9


class Speeds(Protocol):
    """Speeds of clients."""

    def seconds(self, client_id: str) -> float:
        """Return the seconds of one local step, constant for a client over the whole run."""
        ...

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse clients whose speed is unknown, by a `ConfigError`."""
        ...


@dataclass(frozen=True, slots=True)
class Equal:
    """All clients are equally fast."""

    each: float = 1.0

    def seconds(self, client_id: str) -> float:
        """Return the common number of seconds."""
        return self.each

    def check(self, client_ids: Iterable[str]) -> None:
        """Accept any client: all have the same speed."""


INSTANT = Equal(0.0)
"""Speeds of a run without a clock."""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal seconds with a median and a standard deviation `sigma` of the logarithm: most are quick, some very
    slow.
    """

    draws: Draws
    sigma: float
    median: float = 1.0

    def seconds(self, client_id: str) -> float:
        """Return the client's seconds, drawn from its id."""
        drawn = self.draws.uniform(DrawPurpose.SPEED, client_id)
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(drawn))

    def check(self, client_ids: Iterable[str]) -> None:
        """Accept any client: its speed is drawn from its id."""


@dataclass(frozen=True, slots=True)
class TracedSpeeds:
    """Speeds by a trace."""

    file: str
    by_client: Mapping[str, float] = field(repr=False)

    def seconds(self, client_id: str) -> float:
        """Return the seconds of the client's line."""
        return self.by_client[client_id if client_id in self.by_client else numbered(client_id)]

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse clients without a line."""
        unknown = [c for c in client_ids if c not in self.by_client and numbered(c) not in self.by_client]
        if unknown:
            raise ConfigError([f"speeds: '{self.file}' has no line for {unknown[0]}; give one for every client."])


def speeds_of(text: str, draws: Draws) -> Speeds:
    """Return the speeds that a setting names.

    Raises:
        ConfigError: the setting or its file has another form.
    """
    check_form(text)
    if text == "equal":
        return Equal()
    if not names_trace(text):
        return Lognormal(draws, *_numbers(text))
    found = dict(read_trace("speeds", text, ["seconds"]))
    return TracedSpeeds(text, {client: seconds for client, (seconds,) in found.items()})


def check_form(text: str) -> None:
    """Refuse a setting that names no speeds; no file is read.

    Raises:
        ConfigError: the setting has another form; the error names the valid ones.
    """
    if text == "equal" or names_trace(text):
        return
    sigma, median = (*_numbers(text), 1.0)[:2]
    if not (0.0 < sigma <= _MOST_SPREAD and 0.0 < median <= _LONGEST):
        raise ConfigError(
            [f"speeds is '{text}'; give {FORMS}: SIGMA above 0, at most {_MOST_SPREAD:g}, and MEDIAN seconds above 0."]
        )


def _numbers(text: str) -> list[float]:
    """Parse sigma and, if given, the median; NaN if the text has another form."""
    kind, *numbers = text.split(":")
    try:
        found = [float(number) for number in numbers]
    except ValueError:
        return [math.nan]
    return found if kind == "lognormal" and len(found) in {1, 2} else [math.nan]
