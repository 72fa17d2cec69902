"""The least noise with which clients can take all steps of a run, each for itself or all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedprivacy.accounting import RunLimit, shared_noise
from fedprivacy.accounting.calibration import NoiseSearch, solved
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import Executed
from fedprivacy.ledger import Allowance
from fedprivacy.runs.plans.standing import Standing
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.wording import count_text

_NAMED = 5
"""Maximum number of problems that one error lists."""


@dataclass(frozen=True, slots=True)
class RunNoise:
    """Noise multipliers of a run's local steps.

    Attributes:
        shared: of the clients that have none of their own; None: each client has its own for its sampling rate, which
            is known when it enrols.
        own: of the clients that have one of their own, by client_id: as their terms say, or as was found.
    """

    shared: float | None
    own: Mapping[str, float]

    def of(self, client_id: str = "") -> float:
        """Return a client's noise multiplier; raise a `ValueError` if it is not known before the client enrols."""
        found = self.own.get(client_id, self.shared)
        if found is None:
            raise ValueError("each client has the least noise for its own sampling rate; ask for a client's event.")
        return found

    def bounds(self, client_ids: Sequence[str]) -> tuple[float, float] | None:
        """Return the least and the largest noise multiplier if these clients come; None: not known before."""
        if self.shared is None:
            return None
        each = [*self.own.values(), *([] if self.own.keys() >= {*client_ids} else [self.shared])]
        return min(each), max(each)


@dataclass(frozen=True, slots=True)
class Demand:
    """All steps of a run, for which noise is sought.

    Attributes:
        steps: local steps of a client that joins every round.
        most_spent: maximum epsilon that the run may take of a budget.
        relation: the neighbouring relation of its events.
    """

    steps: int
    most_spent: float
    relation: NeighbouringRelation

    def limit(self, standing: Standing, client_id: str = "") -> RunLimit:
        """The limit of the run on a dataset with this standing."""
        return RunLimit(filter_of(standing.allowance), standing.past, self.most_spent, client_id)

    def shared(self, standings: Mapping[str, Standing], sampling_rate: float) -> float:
        """Return the noise multiplier that clients share, as in `fedprivacy.accounting.spend.shared_noise`.

        Raises:
            ValueError: no noise is enough for any of them.
        """
        limits: dict[object, RunLimit] = {}
        for client_id, standing in standings.items():
            limits.setdefault(standing.alike, self.limit(standing, client_id))
        return shared_noise(list(limits.values()), sampling_rate, self.steps, self.relation)

    def each(
        self, standings: Mapping[str, Standing], rates: Mapping[str, float], place: Callable[[str], str]
    ) -> dict[str, float]:
        """Return the least noise multiplier of each client for itself, by client_id.

        A client whose past leaves too little for all steps has the noise that a new one would need, and takes part as
        long as its budget lasts.

        Args:
            standings: of the clients.
            rates: each one's sampling rate.
            place: makes the name of a client in an error.

        Raises:
            ConfigError: lists the first clients whose budget no noise meets.
        """
        alike: dict[tuple[Executed, Allowance, float], list[str]] = {}
        for client_id, standing in standings.items():
            alike.setdefault((*standing.alike, rates[client_id]), []).append(client_id)
        searches = [self._search(Standing(dict(past), allowance), rate) for past, allowance, rate in alike]
        found: dict[str, float] = {}
        problems: list[str] = []
        for (first, *others), noise in zip(alike.values(), solved(searches), strict=True):
            if isinstance(noise, ValueError):
                more = f" and {count_text(len(others), 'other client')}" if others else ""
                problems.append(f"{place(first)}{more}: {noise}")
            else:
                found |= dict.fromkeys([first, *others], noise)
        if problems:
            more_problems = len(problems) - _NAMED
            rest = [f"It is so for {more_problems} other sampling rates and pasts."] * (more_problems > 0)
            raise ConfigError(problems[:_NAMED] + rest)
        return found

    def _search(self, standing: Standing, sampling_rate: float) -> NoiseSearch:
        """Search the least noise of clients that stand alike, or else that of a new one."""
        limit = self.limit(standing)
        try:
            return (yield from limit.noise_search(sampling_rate, self.steps, self.relation))
        except ValueError:
            if not standing.past:
                raise
        return (yield from replace(limit, before={}).noise_search(sampling_rate, self.steps, self.relation))
