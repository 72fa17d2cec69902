"""The accountants that a user may ask, and what the number of each of them is worth."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from fedprivacy.accounting import composition, gdp, pld, rdp
from fedprivacy.values.events import History


class Worth(enum.StrEnum):
    """What an accountant's number says about the true epsilon.

    `GUARANTEE`: it is at most this, computed with every rounding error counted. `BOUND`: it is at most this, by a
    theorem. `APPROXIMATION`: it is about this, and may be larger.
    """

    GUARANTEE = "guarantee"
    BOUND = "bound"
    APPROXIMATION = "approximation"


class Name(enum.StrEnum):
    """How the command line calls an accountant; the tightest first."""

    PLD = "pld"
    RDP = "rdp"
    GDP = "gdp"
    ADVANCED = "advanced"
    BASIC = "basic"


ALL = "all"
"""Every accountant."""


@dataclass(frozen=True, slots=True)
class Accountant:
    """One way to compute an epsilon.

    Attributes:
        name: on the command line.
        title: for people.
        worth: what its number says.
        words: how it works.
        epsilon: of a history at a delta; a ValueError where it does not apply.
    """

    name: Name
    title: str
    worth: Worth
    words: str
    epsilon: Callable[[History, float], float]


@dataclass(frozen=True, slots=True)
class Cost:
    """What an accountant says.

    Attributes:
        accountant: which.
        epsilon: in nats, maybe infinite; None where the accountant does not apply.
        note: why there is no finite number; "" if there is one.
    """

    accountant: Accountant
    epsilon: float | None
    note: str = ""


def cost(accountant: Accountant, history: History, delta: float) -> Cost:
    """What `accountant` says of a history that is valid, at a valid delta."""
    try:
        epsilon = accountant.epsilon(history, delta)
    except ValueError as error:
        return Cost(accountant, None, f"does not apply: {error}")
    return Cost(accountant, epsilon, "" if math.isfinite(epsilon) else "infinite: no finite epsilon holds")


def costs(name: str, history: History, delta: float) -> list[Cost]:
    """What an accountant says, or, for "all", what each of them says.

    Raises:
        ValueError: there is no such accountant, or it does not apply to a mechanism of the history.
    """
    if name == ALL:
        return [cost(accountant, history, delta) for accountant in ACCOUNTANTS.values()]
    if name not in ACCOUNTANTS:
        raise ValueError(f"accountant is '{name}'; choose one of {', '.join(ACCOUNTANTS)}, {ALL}.")
    answer = cost(ACCOUNTANTS[Name(name)], history, delta)
    if answer.epsilon is None:
        raise ValueError(f"accountant is {name}, which {answer.note}")
    return [answer]


ACCOUNTANTS = {
    accountant.name: accountant
    for accountant in (
        Accountant(Name.PLD, "PLD", Worth.GUARANTEE, "privacy loss distributions; the tightest", pld.epsilon),
        Accountant(Name.RDP, "RDP", Worth.BOUND, "Rényi divergences, the moments accountant", rdp.epsilon),
        Accountant(Name.GDP, "GDP", Worth.APPROXIMATION, "central limit; the truth may be larger", gdp.epsilon),
        Accountant(
            Name.ADVANCED, "advanced", Worth.BOUND, "(epsilon, delta) pairs, advanced composition", composition.advanced
        ),
        Accountant(Name.BASIC, "basic", Worth.BOUND, "(epsilon, delta) pairs, added up", composition.basic),
    )
}
