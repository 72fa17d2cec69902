"""Spent privacy loss: a client's, with its standing in its run, every client's, and that of a run as a whole.

With user-level privacy, the last is what the models of a run reveal about any one client as a whole. It is never added
to a client's.

Every figure of a client is a field of `ClientSpent` or `ClientStanding` that is declared by `figure`. All that lists
clients (JSON, the API, the page, rows, Prometheus, the run store) takes its columns from there: see
`fedprivacy.values.columns`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Set, ValuesView
from dataclasses import MISSING, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text


class Look(enum.StrEnum):
    """The look of a column's cells on the page, which shows its columns in this order."""

    STATE = "state"  # a mark, the state, and the reason for it
    TEXT = "text"  # the figure for people, which the API gives as `NAME_text`
    SHARE = "share"  # a bar
    LEFT = "left"  # a whole number; null: there is no limit
    COUNT = "count"  # a whole number
    SHORT = "short"  # six digits


def figure(
    about: str,
    *,
    default: Any = MISSING,
    heading: str = "",
    look: Look = Look.COUNT,
    gauge: str = "",
    unbounded: bool = False,
    shown: bool = True,
) -> Any:
    """Declare a figure of a client, which thereby is a column of all that lists clients.

    Args:
        about: words for readers of the API and of the run store.
        default: value of a client of which nothing is known; none: the figure is always given.
        heading: its words on the page; empty: it is not there.
        look: look of its cells there.
        gauge: what Prometheus says of it; empty: Prometheus is not told.
        unbounded: whether it may be infinite, which is null in JSON and in the run store.
        shown: whether the API and JSON have it under its own name, and not only what is derived from it.
    """
    look_of = {"heading": heading, "look": look, "gauge": gauge}
    return field(default=default, metadata={"about": about, "unbounded": unbounded, "shown": shown} | look_of)


@dataclass(frozen=True, slots=True)
class ClientSpent:
    """One client's privacy loss so far, seen by the server, over all runs on its shard.

    `epsilon` is composed at `delta` by PLD, an odometer's reading and no budget; infinite if no bound is known.
    `budget_epsilon` is infinite if the run only measures.
    """

    client_id: str = figure("")
    epsilon: float = figure("null: no bound", heading="ε spent", look=Look.TEXT, unbounded=True)
    delta: float = figure("of its budget")
    budget_epsilon: float = figure("epsilon of its budget; null: none", unbounded=True, shown=False)
    rounds: int = figure("number charged, over all runs", heading="Rounds charged")
    steps: int = figure("number charged, over all runs")
    steps_left: int = figure("of this run's, that its budget still allows", shown=False)
    sampling_rate: float = figure("q of the run's local steps", heading="q", look=Look.SHORT)
    noise_multiplier: float = figure("sigma of the run's local steps; 0 without privacy", shown=False)

    @property
    def exhausted(self) -> bool:
        """True if not one more step is allowed."""
        return self.steps_left == 0

    @property
    def limited(self) -> bool:
        """True if there is a finite budget."""
        return math.isfinite(self.budget_epsilon)

    @property
    def share(self) -> float | None:
        """Epsilon over budget; None: there is no budget."""
        return self.epsilon / self.budget_epsilon if self.limited else None

    @property
    def share_left(self) -> float | None:
        """The share of the budget that is left; None: there is no budget, or no bound on epsilon."""
        return max(0.0, 1.0 - self.share) if self.share is not None and math.isfinite(self.share) else None


@dataclass(frozen=True, slots=True)
class Reason:
    """The meaning of a reason code."""

    words: str  # a clause for people
    remedy: str  # what the people who run server or client can do
    # True if the client refused before it touched a record: its charge is returned. Any other charge stands.
    refused: bool = False


_READ_LOGS = "read the logs of server and client"

REASONS = {
    "no-reply": Reason(
        "the client did not answer in time",
        "look whether the client's SuperNode runs; raise round-timeout if its training takes longer",
    ),
    "unreachable": Reason(
        "Flower lost the client or its reply on the way",
        "look for the client's SuperNode, its network and the proxy; the next round asks it again",
    ),
    "app-failed": Reason(
        "the client's app ended with an error, which its own log names",
        "read the error in the log of the client's host; mend the task or the host, and start another run",
    ),
    "dropped-out": Reason("the simulated client went away without an answer", "nothing: drop-out simulates it"),
    "too-late": Reason(
        "the simulated client answered when the round was over; what it released is charged",
        "nothing: deadline and speeds simulate it; a later deadline or more over-selection averages more updates",
    ),
    "budget-exhausted": Reason(
        "the client's own guard refused: its budget is spent",
        "nothing, if that was the plan; otherwise the data owner decides on a larger budget in its node configuration",
        refused=True,
    ),
    "grant-invalid": Reason(
        "the client refused a grant that it could not accept",
        "read the client's log, which names the setting; agree on it, or give server and client the same version",
        refused=True,
    ),
    "seed-in-deployment": Reason(
        "the client refused to train with a known seed",
        "take seed out of the run: anybody who knows it can remove the noise",
        refused=True,
    ),
    "no-guard": Reason(
        "the client has no guard and refused to train",
        "name a file for the guard in the client's node configuration",
        refused=True,
    ),
    "guard-unusable": Reason(
        "the client could not write down the charge and refused to train",
        "run fedprivacy deploy check on the client's host: it says what is wrong with the guard's file",
        refused=True,
    ),
    "no-room": Reason(
        "the client's disk has no room for a round, and it refused to train",
        "free the disk on the client's host; fedprivacy deploy check says how much a round needs",
        refused=True,
    ),
    "no-memory": Reason(
        "the client's host has too little memory for the model, and it refused to train",
        "give the client's service more memory (MemoryMax), or agree on a smaller model",
        refused=True,
    ),
    "no-key": Reason(
        "the client has no key to sign with and refused to train",
        "make the client's key on its host with fedprivacy deploy client-key, and enrol it at the server",
        refused=True,
    ),
    "node-config-invalid": Reason(
        "the client's own node configuration is incomplete or wrong",
        "run fedprivacy deploy check on the client's host: it names each wrong setting",
        refused=True,
    ),
    "task-not-allowed": Reason(
        "the client's own node configuration does not allow this task",
        "run a task that the client's node configuration names, or let the data owner name this one",
        refused=True,
    ),
    "question-not-allowed": Reason(
        "the client's own node configuration does not allow these questions",
        "ask what the client's node configuration allows, or let the data owner allow these questions",
        refused=True,
    ),
    "questions-exhausted": Reason(
        "the client's own guard refused: its budget for questions is spent",
        "read the answers that are kept, which costs nothing; or let the data owner set aside more for questions",
        refused=True,
    ),
    "enrolment-invalid": Reason(
        "the client's own server did not sign the request to enrol",
        "give the client the key of the server that runs now, in its node configuration",
        refused=True,
    ),
    "already-charged": Reason(
        "the client had been charged when it died, and lost its update",
        "nothing: the charge stands, and the next round asks the client again",
    ),
    "client-failed": Reason(
        "training failed on the client's host", "read the error in the log of the client's host; the charge stands"
    ),
    "malformed-refusal": Reason("the client's refusal could not be read", "give server and client the same version"),
    "malformed-receipt": Reason(
        "the client's receipt could not be read", "give server and client the same version; the charge stands"
    ),
    "receipt-does-not-match-grant": Reason(
        "the client's receipt says something else than the grant",
        "give server and client the same version; if they have it, ask the client's owner who changed its program",
    ),
    "forged-receipt": Reason(
        "the client's key did not sign the receipt",
        "ask the client's owner: someone else answered in its name, or its key was replaced without ledger rebind",
    ),
    "receipt-of-another-update": Reason(
        "the receipt was signed for another update",
        "ask the client's owner, and look for what changes messages on their way",
    ),
    "too-large": Reason(
        "a parameter of the update is beyond 1e15", "lower the learning rate or the clipping norm: training diverges"
    ),
    "wrong-arrays": Reason(
        "the update holds other parameters than the model", "give every client the same version of the task"
    ),
    "wrong-shape": Reason(
        "a parameter of the update has another shape than the model's", "give every client the same version of the task"
    ),
    "undecodable": Reason(
        "a parameter of the update could not be read", "give server and client the same version of Flower"
    ),
    "not-finite": Reason(
        "a parameter of the update is infinite or not a number", "lower the learning rate: training diverges"
    ),
}
"""Reasons by code, the part of a reason before its first colon."""


def reason_of(text: str) -> Reason:
    """Return the meaning of a reason, with or without a detail after its code; unknown codes stand for themselves."""
    code = text.partition(":")[0]
    return REASONS.get(code, Reason(code.replace("-", " "), _READ_LOGS))


class ClientState(enum.StrEnum):
    """The state of a client in its run, in the words that people and programs read everywhere.

    `SPENT`: its budget allows no further step, from the last round on that the run planned: a success. `EXHAUSTED`: it
    allows none already before. `UNRECONCILED`: no receipt has confirmed a charge; it counts. `REFUSED`, `FAILED`: what
    became of its update when it was last asked. `ACTIVE`: none of these.
    """

    ACTIVE = "active"
    SPENT = "spent as planned"
    EXHAUSTED = "exhausted"
    UNRECONCILED = "unreconciled"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def good(self) -> bool:
        """True if all is as it was planned; any other state is shown in the colour of a warning."""
        return self in (ClientState.ACTIVE, ClientState.SPENT)

    @property
    def slug(self) -> str:
        """The state as a class of a style sheet."""
        return self.replace(" ", "-")

    @classmethod
    def of_budget(cls, exhausted_in: int | None, rounds: int) -> ClientState:
        """Return the state of a budget.

        Args:
            exhausted_in: the first round after which no step was left; None: some is.
            rounds: number of rounds that the run plans.
        """
        if exhausted_in is None:
            return cls.ACTIVE
        return cls.SPENT if exhausted_in >= rounds else cls.EXHAUSTED


@dataclass(slots=True)
class ClientStanding:
    """The standing of a client after the run's last round; `fedprivacy.values.runs.Roster` updates it."""

    number: int  # position in the order of enrolment, from 0
    spent: ClientSpent  # its privacy loss
    planned: int  # number of rounds that the run plans
    averaged: int = figure("rounds of this run whose average holds its update", default=0, heading="Averaged")
    failed: int = figure("rounds of this run that asked for an update and did not use it", default=0, heading="Failed")
    exhausted_in: int | None = figure("first round after which no step was left; null: some is", default=None)
    reason: str | None = figure("why its last update was not used; null: it was, or none was asked for", default=None)
    unreconciled: bool = False  # True if a charge of the run has no receipt

    @property
    def client_id(self) -> str:
        return self.spent.client_id

    @property
    def budget_state(self) -> ClientState:
        """The state of its budget alone."""
        return ClientState.of_budget(self.exhausted_in, self.planned)

    @property
    def state(self) -> ClientState:
        """The state, in one word."""
        if self.budget_state is not ClientState.ACTIVE:
            return self.budget_state
        if self.unreconciled:
            return ClientState.UNRECONCILED
        if self.reason is None:
            return ClientState.ACTIVE
        return ClientState.REFUSED if reason_of(self.reason).refused else ClientState.FAILED


_MOST_APART = 1 / 8
"""Maximum share of the clients that a reading keeps apart from the shared ones; beyond it, copying all is cheaper."""


class PopulationSpent(Mapping[str, ClientSpent]):
    """Every client's privacy loss at one moment, by client_id and in the order of the client_ids. It never changes.

    A reading costs only what the changed clients cost. A round may ask a thousand of a hundred thousand clients. A
    reading shares all others with the previous reading, and knows which they are: neither a round nor an observer that
    keeps every round pays for clients that were not asked.

    Args:
        clients: privacy loss of each client, by client_id.

    Attributes:
        places: client_id -> its place in that order; the same object in every reading of the same clients.
    """

    __slots__ = ("_apart", "_epsilons", "_exhausted", "_moment", "_shared", "places")

    def __init__(self, clients: Mapping[str, ClientSpent]) -> None:
        self._shared = dict(sorted(clients.items()))
        self._apart: dict[str, ClientSpent] = {}
        self.places = {client_id: place for place, client_id in enumerate(self._shared)}
        self._moment = _Moment()
        self._epsilons: NDArray[np.float64] | None = None
        self._exhausted: tuple[str, ...] | None = None

    @classmethod
    def of(cls, clients: Mapping[str, ClientSpent]) -> PopulationSpent:
        """Return a reading of clients given by client_id; a reading is returned as it is."""
        return clients if isinstance(clients, PopulationSpent) else cls(clients)

    def __getitem__(self, client_id: str) -> ClientSpent:
        return self._apart[client_id] if client_id in self._apart else self._shared[client_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shared)

    def __len__(self) -> int:
        return len(self._shared)

    def items(self) -> ItemsView[str, ClientSpent]:
        """Every client with its client_id."""
        return self._whole.items()

    def values(self) -> ValuesView[ClientSpent]:
        return self._whole.values()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._whole})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._whole,)

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """Every client's privacy loss in nats, by place; not to be written to."""
        if self._epsilons is None:
            self._epsilons = np.fromiter((client.epsilon for client in self.values()), np.float64, len(self))
        return self._epsilons

    @property
    def exhausted(self) -> tuple[str, ...]:
        """Clients with nothing left of their budget."""
        if self._exhausted is None:
            self._exhausted = tuple(client_id for client_id, client in self.items() if client.exhausted)
        return self._exhausted

    def update(self, changed: Mapping[str, ClientSpent]) -> PopulationSpent:
        """Return the next reading, in which these clients, known or new, are as given and all others are unchanged."""
        if not changed:
            return self
        known = changed.keys() <= self.places.keys()
        after = self._with(changed) if known else PopulationSpent({**self._whole, **changed})
        if self._moment.then is None:  # else another reading was taken after this one
            self._moment.then = frozenset(changed), after._moment
        return after

    def changed_since(self, before: PopulationSpent | None) -> list[str]:
        """List the clients that are new or differ from an earlier reading, in the order of the client_ids."""
        if before is None:
            return list(self)
        looked_at = self._perhaps_changed_since(before)
        return sorted(client_id for client_id in looked_at if before.get(client_id) != self[client_id])

    def includes(self, before: PopulationSpent) -> bool:
        """Return whether every client of another reading is in this one."""
        return before.places is self.places or before.places.keys() <= self.places.keys()

    def _perhaps_changed_since(self, before: PopulationSpent) -> Iterable[str]:
        """Return clients that may have changed; all, if this reading did not come from that one by `update`."""
        changed: set[str] = set()
        moment = before._moment
        while moment is not self._moment:
            if moment.then is None:
                return self
            some, moment = moment.then
            changed |= some
        return changed

    @property
    def _whole(self) -> dict[str, ClientSpent]:
        return self._shared | self._apart if self._apart else self._shared

    def _with(self, changed: Mapping[str, ClientSpent]) -> PopulationSpent:
        """Return the same clients, some of them changed."""
        after: PopulationSpent = object.__new__(PopulationSpent)
        apart = {**self._apart, **changed}
        crowded = len(apart) > _MOST_APART * len(self)
        after._shared, after._apart = (self._shared | apart, {}) if crowded else (self._shared, apart)
        after.places, after._moment = self.places, _Moment()
        after._epsilons = self._epsilons if self._epsilons is None else self._epsilons_with(changed, self._epsilons)
        after._exhausted = self._exhausted if self._exhausted is None else _exhausted_with(changed, self._exhausted)
        return after

    def _epsilons_with(self, changed: Mapping[str, ClientSpent], before: NDArray[np.float64]) -> NDArray[np.float64]:
        epsilons = before.copy()
        epsilons[[self.places[client_id] for client_id in changed]] = [client.epsilon for client in changed.values()]
        return epsilons


def _exhausted_with(changed: Mapping[str, ClientSpent], before: tuple[str, ...]) -> tuple[str, ...]:
    now = {client_id for client_id, client in changed.items() if client.exhausted}
    if now == changed.keys() & set(before):
        return before
    return tuple(sorted([*(client_id for client_id in before if client_id not in changed), *now]))


class _Moment:
    """The moment of a reading: it links to the next moment, and is freed with the last earlier reading."""

    __slots__ = ("then",)

    def __init__(self) -> None:
        self.then: tuple[Set[str], _Moment] | None = None  # who has changed until the moment after it


FOR_WHOM = "user-level, for whoever sees the global models"
"""Label beside every user-level epsilon that is shown."""


@dataclass(frozen=True, slots=True)
class UserLevelSpent:
    """The user-level account of a run after a round. The unit of privacy is the client; the server is trusted."""

    epsilon: float  # composed over the run's rounds at `delta`, by PLD
    delta: float  # probability with which the bound may fail
    budget_epsilon: float  # at which the run ends; infinite if it only measures
    rounds: int  # rounds charged, including those released again after the run was stopped
    sampling_rate: float  # q, with which each client joins a round
    noise_multiplier: float  # z, deviation of the noise on the sum of clipped updates, in clipping norms
    clipping_norm: float  # C of the next round

    @property
    def text(self) -> str:
        """The figure for people, with the observer for whom it holds."""
        limit = f" of {budget_text(self.budget_epsilon)}" if math.isfinite(self.budget_epsilon) else ""
        spent = epsilon_text(self.epsilon, self.budget_epsilon)
        rounds = count_text(self.rounds, "round")
        return f"epsilon {spent}{limit} at delta {delta_text(self.delta)} after {rounds} ({FOR_WHOM})"
