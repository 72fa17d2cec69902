"""Speeds: how many simulated seconds a local step takes each client."""

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
"""Of sigma: a client in forty would be more than 20,000 times as slow as the median."""

_LONGEST = 1e9


class Speeds(Protocol):
    """How fast clients are."""

    def seconds(self, client_id: str) -> float:
        """Of one local step, the client's own for the whole run."""
        ...

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse clients whose speed is not known, by a `ConfigError`."""
        ...


@dataclass(frozen=True, slots=True)
class Equal:
    """Everybody is as fast."""

    each: float = 1.0

    def seconds(self, client_id: str) -> float:
        """The same for all."""
        return self.each

    def check(self, client_ids: Iterable[str]) -> None:
        """Nobody is unknown."""


INSTANT = Equal(0.0)
"""Where there is no clock."""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """By their median, in seconds, and their logarithm's standard deviation `sigma`: most are quick, some very slow."""

    draws: Draws
    sigma: float
    median: float = 1.0

    def seconds(self, client_id: str) -> float:
        """Drawn once for each client."""
        drawn = self.draws.uniform(DrawPurpose.SPEED, client_id)
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(drawn))

    def check(self, client_ids: Iterable[str]) -> None:
        """Nobody is unknown."""


@dataclass(frozen=True, slots=True)
class Observed:
    """As a trace says."""

    file: str
    by_client: Mapping[str, float] = field(repr=False)

    def seconds(self, client_id: str) -> float:
        """Of the client's line."""
        return self.by_client[client_id if client_id in self.by_client else numbered(client_id)]

    def check(self, client_ids: Iterable[str]) -> None:
        """Refuse clients without a line."""
        unknown = [c for c in client_ids if c not in self.by_client and numbered(c) not in self.by_client]
        if unknown:
            raise ConfigError([f"speeds: '{self.file}' has no line for {unknown[0]}; give one for every client."])


def speeds_of(text: str, draws: Draws) -> Speeds:
    """The speeds that a setting names.

    Raises:
        ConfigError: it is of no such form, or its file is not.
    """
    check_form(text)
    if text == "equal":
        return Equal()
    if not names_trace(text):
        return Lognormal(draws, *_numbers(text))
    found = dict(read_trace("speeds", text, ["seconds"]))
    return Observed(text, {client: seconds for client, (seconds,) in found.items()})


def check_form(text: str) -> None:
    """Refuse what names no speeds; no file is read.

    Raises:
        ConfigError: says what does.
    """
    if text == "equal" or names_trace(text):
        return
    sigma, median = (*_numbers(text), 1.0)[:2]
    if not (0.0 < sigma <= _MOST_SPREAD and 0.0 < median <= _LONGEST):
        raise ConfigError(
            [f"speeds is '{text}'; give {FORMS}: SIGMA above 0, at most {_MOST_SPREAD:g}, and MEDIAN seconds above 0."]
        )


def _numbers(text: str) -> list[float]:
    """Sigma and, where it is given, the median; not a number, where the text is of another form."""
    kind, *numbers = text.split(":")
    try:
        found = [float(number) for number in numbers]
    except ValueError:
        return [math.nan]
    return found if kind == "lognormal" and len(found) in {1, 2} else [math.nan]
