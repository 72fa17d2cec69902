"""A check as a gate, which passes or fails and says what it proves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import NamedTuple, TypeVar

from fedprivacy.audit.findings import Gate
from fedprivacy.audit.real_client import NoUpdateError
from fedprivacy.audit.subject import Said

MOST_REASONS = 4
"""Maximum number of reasons that a gate gives; an exact check that has found so many need not go on."""

_NO_UPDATE = "A client sent no update for some records, though it does for others: that it has them shows."

Audited = TypeVar("Audited")
"""The subject that a gate checks."""


class Judged(NamedTuple):
    """Result of a gate's check: the number that decided, what is wrong, and a p-value unless the check is exact."""

    statistic: float
    reasons: Sequence[str]
    p_value: float | None = None


def gate(name: str, *, proves: str, assumes: str) -> Callable[[Callable[[Audited], Judged]], Callable[[Audited], Gate]]:
    """Turn a check into a gate, which passes if there is no reason against it; of many reasons, it gives the first few.

    A client that sends no update, although nothing is wrong with the request, fails the gate that asked. A subject may
    have its own words for a gate, in `said`.
    """

    def as_gate(check: Callable[[Audited], Judged]) -> Callable[[Audited], Gate]:
        @wraps(check)
        def checked(audited: Audited) -> Gate:
            try:
                judged = check(audited)
            except NoUpdateError:
                judged = Judged(math.inf, [_NO_UPDATE])
            said: Said = getattr(audited, "said", {}).get(name, Said(proves, assumes))
            return verdict(name, said.proves, said.assumes, judged)

        return checked

    return as_gate


def verdict(name: str, proves: str, assumes: str, judged: Judged) -> Gate:
    """A gate that passes if there is no reason why not; each is given once, the first few of them."""
    reasons = tuple(dict.fromkeys(judged.reasons))[:MOST_REASONS]
    return Gate(
        name=name,
        proves=proves,
        passed=not reasons,
        statistic=judged.statistic,
        p_value=judged.p_value,
        assumptions=assumes,
        reasons=reasons,
    )
