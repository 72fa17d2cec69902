"""Views: the observers that an epsilon is stated for, as values that cannot be mixed and as separate accounts.

The *server's view* is the default: the server sees every update of a client, and a record is protected. The
*user-level view* trusts the server and protects a whole client against anybody who sees the models (DP-FedAvg: McMahan,
Ramage, Talwar, Zhang 2018, arXiv 1710.06963). Each is a number called epsilon; neither follows from the other.

>>> from fedprivacy.values.events import PoissonSampledGaussian
>>> hospital = reading({PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.0): 1_000}, delta=1e-5)
>>> print(hospital)
epsilon 1.83 at delta 1e-05 (PLD; one record, add-or-remove-one, server view)
>>> account = UserLevelAccount()
>>> account.record(client_sampling_rate=0.01, noise_multiplier=1.0, rounds=1_000)
>>> print(account.epsilon(delta=1e-5))
epsilon 1.83 at delta 1e-05 (PLD; one client, add-or-remove-one, user-level view)
>>> hospital < account.epsilon(delta=1e-5)
Traceback (most recent call last):
fedprivacy.accounting.views.MeaningsDiffer: the epsilons have different views (server, user-level): they protect ...

Formal guarantee: an `Epsilon` is an upper bound with the meaning of its fields. Two can be ordered only if view, delta,
relation and unit agree, and never added; equality compares every field.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context

from fedprivacy.accounting import calibration, pld
from fedprivacy.accounting.histories import check_delta, executed_events, extend_history
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import Event, History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.wording import written_out

_THREE_DIGITS_UP = Context(prec=3, rounding=ROUND_CEILING)


class Protected(enum.StrEnum):
    """The unit that an epsilon protects: `RECORD`, one row of a client's shard; `CLIENT`, all records of a client."""

    RECORD = "record"
    CLIENT = "client"


class View(enum.StrEnum):
    """The observer that an epsilon is stated for.

    `SERVER`: the server, which sees each client's update in every round that the client joins. One account for each
    client, over all its rounds and runs; sampling of clients amplifies nothing.
    `USER_LEVEL`: anybody who sees the models; the server is trusted. One account for the federation.
    """

    SERVER = "server"
    USER_LEVEL = "user-level"

    @property
    def protects(self) -> Protected:
        """The protected unit."""
        return Protected.CLIENT if self is View.USER_LEVEL else Protected.RECORD

    @property
    def guarantee(self) -> str:
        """The promise, in one sentence for people."""
        return _GUARANTEES[self]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions of the promise, each a sentence for people. This module cannot check them."""
        return _CONDITIONS[self]


_GUARANTEES = {
    View.SERVER: (
        "Each record of a client is protected, by (epsilon, delta)-differential privacy over all rounds and runs of "
        "that client, even against the server, which sees every update; sampling of clients amplifies nothing."
    ),
    View.USER_LEVEL: (
        "Each client is protected as a whole, by (epsilon, delta)-differential privacy over all rounds of the "
        "federation, against whoever sees the models, but not against the server, which is trusted to sample the "
        "clients, to clip their updates and to add the noise."
    ),
}

_CONDITIONS = {
    View.SERVER: (
        "Every update that leaves a client is computed from the releases that its history counts, and from nothing "
        "else of its shard.",
        "The history counts every round and every run on the shard.",
        "A record lies in the shard of one client; a person with several records loses more, and more than so many "
        "times epsilon at the same delta.",
    ),
    View.USER_LEVEL: (
        "In every round the server lets each client join independently, with probability q (Poisson sampling); a fixed "
        "number of clients in each round is another mechanism, with another epsilon.",
        "Who joined stays secret, and so does how many: a round is carried out and counted however few they are, even "
        "none, and nobody is asked in the place of a client that fails.",
        "What one client adds to the sum, weight included, is clipped to Euclidean norm C, whatever the client sends.",
        "The sum receives Gaussian noise of standard deviation sigma * C in every coordinate, before anybody but the "
        "server sees it.",
        "What turns the sum into an average is fixed beforehand, such as q times a public number of clients; the "
        "number or the total weight of those who joined would tell on them.",
        "Nothing else that depends on the clients' data is published: no losses, accuracies or sizes of shards.",
        "q and sigma of every round are fixed before the first; if they are chosen by what was released, epsilon is an "
        "odometer's reading and no guarantee.",
    ),
}


class MeaningsDiffer(TypeError):
    """Epsilons with different meanings were compared or combined."""


@dataclass(frozen=True, slots=True)
class Epsilon:
    """An epsilon and its meaning. It is not a number, so that nothing can be added to it; its `value` is one."""

    value: float  # upper bound on the privacy loss at `delta`, in nats, >= 0; may be infinite
    delta: float  # probability with which the bound may fail, in (0, 1)
    view: View  # the observer, which decides what is protected
    # The neighbouring relation, between shards in the server's view, between federations at user level.
    relation: NeighbouringRelation
    accountant: str = "PLD"  # accountant that computed the value
    named: str = ""  # the data's own word for the protected unit, such as "patient (at most 8 rows)"

    def __post_init__(self) -> None:
        if not self.value >= 0.0:
            raise ValueError(f"epsilon is {self.value}; an upper bound on a privacy loss is at least 0.")
        check_delta(self.delta)

    @property
    def unit(self) -> str:
        """The protected unit: the one that is named, or a record, or a client."""
        return self.named or self.view.protects

    def __lt__(self, other: Epsilon) -> bool:
        return self._compare(operator.lt, other)

    def __le__(self, other: Epsilon) -> bool:
        return self._compare(operator.le, other)

    def __gt__(self, other: Epsilon) -> bool:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Epsilon) -> bool:
        return self._compare(operator.ge, other)

    def __str__(self) -> str:
        return (
            f"epsilon {_rounded_up(self.value)} at delta {self.delta} "
            f"({self.accountant}; one {self.unit}, {self.relation}, {self.view} view)"
        )

    def _compare(self, holds: Callable[[float, float], bool], other: object) -> bool:
        if not isinstance(other, Epsilon):
            raise MeaningsDiffer(
                f"'{self}' is compared with {other!r}, which states neither delta nor view; compare its value."
            )
        for name, remedy in _REMEDIES.items():
            if (own := str(getattr(self, name))) != (others := str(getattr(other, name))):
                raise MeaningsDiffer(f"the epsilons have different {name}s ({own}, {others}): {remedy}")
        return holds(self.value, other.value)


_REMEDIES = {
    "view": "they protect different things, a record or a client; state them side by side, and never as one number.",
    "delta": "an epsilon says nothing at another delta; read all of them at the same one.",
    "relation": "no theorem relates them; keep one account for each relation.",
    "unit": "what one of them loses says nothing of the other; keep one account for each unit.",
}


def _rounded_up(epsilon: float) -> str:
    """Format with three significant digits, never rounded down."""
    return written_out(_THREE_DIGITS_UP.create_decimal(repr(float(epsilon)))) if math.isfinite(epsilon) else "∞"


def reading(
    history: History,
    delta: float,
    relation: NeighbouringRelation = NeighbouringRelation.ADD_OR_REMOVE_ONE,
    unit: str = "",
) -> Epsilon:
    """Return the privacy loss of a record of one client to the server, by the PLD.

    Args:
        history: number of executions of each event on the client's shard, over all rounds and runs.
        delta: probability in (0, 1).
        relation: relation of an empty history, which costs 0 under every relation; otherwise the history states it.
        unit: what the mechanism samples and clips as one, if that is not a row.

    Raises:
        ValueError: delta is outside (0, 1), or the history mixes neighbouring relations.
    """
    executed = executed_events(history)
    stated = next((event.relation for event in executed), relation)
    return Epsilon(pld.epsilon(executed, delta), delta, View.SERVER, stated, named=unit)


class UserLevelAccount:
    """Account of DP-FedAvg: the privacy loss of any one client to the models of a federation, apart from every ledger.

    It neither exports nor imports a history, so that its rounds cannot enter a record-level account. It lives in
    memory: to continue a federation, record the earlier rounds again, over all runs with the same clients.

    Formal guarantee (McMahan, Ramage, Talwar, Zhang 2018, arXiv 1710.06963). Let every client join a round
    independently with probability q, let what each adds to the round's sum have Euclidean norm at most C, and let the
    sum receive Gaussian noise of standard deviation sigma C. A federation that has one client more or less moves the
    sum by at most C, and only if that client joined: the round is a `PoissonSampledGaussian` of *clients*. Dividing by
    a fixed number and computing the next model from it are post-processing. All models together are therefore
    (epsilon, delta)-differentially private under adding or removing one client with all of its records. The conditions
    that a federation must keep are `View.USER_LEVEL.conditions`.
    """

    def __init__(self) -> None:
        self._history: dict[Event, int] = {}

    @property
    def rounds(self) -> int:
        """Number of rounds recorded."""
        return sum(self._history.values())

    def record(self, client_sampling_rate: float, noise_multiplier: float, rounds: int = 1) -> None:
        """Charge rounds, before their models are published.

        Args:
            client_sampling_rate: q, probability with which a client joins, in (0, 1].
            noise_multiplier: sigma, standard deviation of the noise on the sum in units of C, > 0 and finite.
            rounds: number of rounds, at least 1.

        Raises:
            ValueError: an argument is out of range. Nothing is charged.
        """
        event = _round_of_clients(client_sampling_rate, noise_multiplier)
        self._history = extend_history(self._history, event, _checked_rounds(rounds))

    def epsilon(self, delta: float) -> Epsilon:
        """Return the privacy loss of any one client to observers of the models, by the PLD; 0 before the first round.

        Args:
            delta: probability in (0, 1), well below 1 / number of clients.

        Raises:
            ValueError: delta is outside (0, 1).
        """
        value = pld.epsilon(self._history, delta)
        return Epsilon(value, delta, View.USER_LEVEL, NeighbouringRelation.ADD_OR_REMOVE_ONE)

    def rounds_left(self, budget: PrivacyBudget, client_sampling_rate: float, noise_multiplier: float) -> int:
        """Return the largest number of further rounds with which the account stays within `budget`, see `step_quota`.

        Args:
            budget: budget of each client as a whole, for the rounds recorded and future rounds.
            client_sampling_rate: q of the future rounds.
            noise_multiplier: sigma of the future rounds.

        Returns:
            A number >= 0, at most `UNLIMITED`; `UNLIMITED` when the budget's epsilon is infinite.

        Raises:
            ValueError: an argument is out of range.
        """
        event = _round_of_clients(client_sampling_rate, noise_multiplier)
        return calibration.step_quota(event, budget, self._history)

    def noise_multiplier(self, budget: PrivacyBudget, client_sampling_rate: float, rounds: int) -> float:
        """Return the smallest noise multiplier with which `rounds` further rounds stay within `budget`.

        Args:
            budget: budget of each client as a whole, with finite epsilon, for the rounds recorded and future rounds.
            client_sampling_rate: q of the future rounds.
            rounds: number of rounds, at least 1.

        Returns:
            Sigma in units of C; it spends at least 99.9 % of epsilon, see `fedprivacy.accounting.noise_multiplier`.

        Raises:
            ValueError: an argument is out of range, or the budget is infinite, is spent, asks for no noise, or is
                missed with a noise multiplier of 10^4.
        """
        rate, steps = _checked_rate(client_sampling_rate), _checked_rounds(rounds)
        try:
            return calibration.noise_multiplier(budget, rate, steps, past=self._history)
        except ValueError as error:
            raise ValueError(
                f"user-level account (a step is a round, a sampling_rate is of clients): {error}"
            ) from error


def _round_of_clients(client_sampling_rate: float, noise_multiplier: float) -> PoissonSampledGaussian:
    rate = _checked_rate(client_sampling_rate)
    return PoissonSampledGaussian(rate, noise_multiplier, NeighbouringRelation.ADD_OR_REMOVE_ONE)


def _checked_rate(client_sampling_rate: float) -> float:
    if not 0.0 < client_sampling_rate <= 1.0:
        raise ValueError(
            f"client_sampling_rate is {client_sampling_rate}; choose a probability in (0, 1], with which each client "
            "joins a round: the number of clients that shall join on average, over the number of all clients."
        )
    return client_sampling_rate


def _checked_rounds(rounds: int) -> int:
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}; choose an integer of at least 1.")
    return rounds
