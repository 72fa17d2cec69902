"""The columns of a client: one list, from which JSON, the API, rows, the page and Prometheus take theirs.

A figure of `ClientSpent` or `ClientStanding` is a column by itself. A new one is declared there, with its words, and is
computed where its value is known: rounds of the run in `fedprivacy.values.runs.Roster`, privacy in
`fedprivacy.runs.accountant`. Only what follows from several figures is written down here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, get_type_hints

from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.series import RunFacts
from fedprivacy.values.spent import ClientSpent, ClientStanding, Look, reason_of
from fedprivacy.values.wording import budget_text, delta_text


@dataclass(frozen=True, slots=True)
class ClientColumn:
    """A column of a client: its name and type in JSON, and how it is shown.

    Attributes:
        name: its key.
        kind: type of its values.
        value: computes one for a client of a run.
        about: words for readers of the API.
        sort: the figure by which clients are sorted in its order; empty: they are not.
        heading: its words on the page; empty: it is not there.
        look: look of its cells there.
        gauge: what Prometheus says of it; empty: Prometheus is not told.
        words: whether it is for people, and says what another column says.
    """

    name: str
    kind: Any
    value: Callable[[RunFacts, ClientStanding], Any]
    about: str = ""
    sort: str = ""
    heading: str = ""
    look: Look = Look.COUNT
    gauge: str = ""
    words: bool = False


def rounds_left(steps_left: int, facts: RunFacts) -> int:
    """Return the rounds that so many steps last, the last of them perhaps with fewer."""
    whole = facts.schedule.rounds_within(steps_left)
    return whole + (facts.schedule.steps_until(whole) < steps_left)


def raw_row(client: ClientStanding) -> dict[str, Any]:
    """Return every figure of a client as Python has it, and its state: what has no bound is infinite."""
    return {name: read(client) for name, read in _FIGURES.items()} | {"state": str(client.state)}


def json_row(facts: RunFacts, client: ClientStanding, *, words: bool = False) -> dict[str, Any]:
    """Return every column of a client as JSON has it, on request with those for people; null: no bound or limit."""
    return {column.name: column.value(facts, client) for column in CLIENT_COLUMNS if words or not column.words}


_FIGURES = {each.name: attrgetter(f"spent.{each.name}") for each in fields(ClientSpent)} | {
    each.name: attrgetter(each.name) for each in fields(ClientStanding) if each.metadata
}
"""Reads each figure of a client, by name."""


def _declared_columns() -> Iterator[ClientColumn]:
    for kind in (ClientSpent, ClientStanding):
        types = get_type_hints(kind)
        for each in fields(kind):
            if each.metadata.get("shown"):
                told = {name: each.metadata[name] for name in ("about", "heading", "look", "gauge")}
                hint = float | None if each.metadata["unbounded"] else types[each.name]
                yield ClientColumn(each.name, hint, _as_json(_FIGURES[each.name]), sort=each.name, **told)


def _as_json(read: Callable[[ClientStanding], Any]) -> Callable[[RunFacts, ClientStanding], Any]:
    def value(_: RunFacts, client: ClientStanding) -> Any:
        found = read(client)
        return finite_or_none(found) if isinstance(found, float) else found

    return value


def _noise(facts: RunFacts, client: ClientStanding) -> float | None:
    return client.spent.noise_multiplier if facts.private else None


def _rounds_left(facts: RunFacts, client: ClientStanding) -> int | None:
    return rounds_left(client.spent.steps_left, facts) if client.spent.limited else None


_SHARE, _SHARE_LEFT = _as_json(attrgetter("spent.share")), _as_json(attrgetter("spent.share_left"))
_BUDGET, _STATE = _as_json(attrgetter("spent.budget_epsilon")), _as_json(attrgetter("state.value"))
_ROUNDS = "rounds that the budget still allows, if it joins every one"
_GAUGE = "Rounds that a client's budget still allows; missing without a budget."
_UNLESS, _SIGMA = "null without privacy", "\N{GREEK SMALL LETTER SIGMA}"

CLIENT_COLUMNS = (
    *_declared_columns(),
    ClientColumn("epsilon_text", str, lambda f, c: f.epsilon_text(c.spent.epsilon, c.spent.budget_epsilon), words=True),
    ClientColumn("delta_text", str, lambda _, client: delta_text(client.spent.delta), words=True),
    ClientColumn("budget", float | None, _BUDGET, "", "budget_epsilon", "Budget", Look.TEXT),
    ClientColumn(
        "budget_text", str, lambda _, c: budget_text(c.spent.budget_epsilon) if c.spent.limited else "none", words=True
    ),
    ClientColumn("share", float | None, _SHARE, "epsilon over budget", "share", "Share", Look.SHARE),
    ClientColumn("share_left", float | None, _SHARE_LEFT),
    ClientColumn("noise_multiplier", float | None, _noise, _UNLESS, "noise_multiplier", _SIGMA, Look.SHORT),
    ClientColumn("steps_left", int | None, lambda _, client: client.spent.steps_left if client.spent.limited else None),
    ClientColumn("rounds_left", int | None, _rounds_left, _ROUNDS, "steps_left", "Rounds left", Look.LEFT, _GAUGE),
    ClientColumn("state", str, _STATE, "", "state", "State", Look.STATE),
    ClientColumn(
        "reason_words", str | None, lambda _, client: client.reason and reason_of(client.reason).words, words=True
    ),
)
"""Every column of a client, those that are declared as figures first."""

PAGE_COLUMNS = sorted((column for column in CLIENT_COLUMNS if column.heading), key=lambda c: [*Look].index(c.look))
"""Those that the page shows, in its order."""
