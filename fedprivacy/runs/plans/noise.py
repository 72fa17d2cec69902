"""The noise that a run needs: of local steps, after what its clients have spent, and of the server's own average.

Clients of a run find the least noise with which they can take all steps, each for itself or all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedprivacy.accounting import RunLimit, shared_noise
from fedprivacy.accounting.calibration import NoiseSearch, solve
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import Executed, without
from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.ledger import NOTHING_SPENT, Allowance, Ledger
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.training.user_level import ClippedClientSum, count_and_sum
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.wording import count_text

_NAMED = 5
"""Maximum number of problems that one error lists."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A client's past and what is allowed on its dataset.

    Attributes:
        past: what its dataset was charged before the run.
        allowance: the budget and the filter in force.
        question: what the answer to the task's own question will cost before the first round, part of the past; None:
            nothing is asked.
        charged: what this run was charged before it was stopped; not part of the past.
    """

    past: History
    allowance: Allowance
    question: PoissonSampledGaussian | None = None
    charged: History = field(default_factory=dict)

    @property
    def alike(self) -> tuple[Executed, Allowance]:
        """A key that clients have in common when all that follows from their standing is the same."""
        return frozenset(self.past.items()), self.allowance

    def charged_at(self, sampling_rate: float) -> float | None:
        """Return the noise multiplier that this run has charged at a sampling rate; None: it has charged none.

        Only a client's own guard can have reported several. Of these the largest tells least of the records.
        """
        poisson = [event for event in self.charged if isinstance(event, PoissonSampledGaussian)]
        return max((event.noise_multiplier for event in poisson if event.sampling_rate == sampling_rate), default=None)


def standings_on(
    ledger: Ledger | None, run_id: str, datasets: Mapping[str, str], new: Callable[[str, Allowance | None], Allowance]
) -> dict[str, Standing]:
    """Read how clients stand on a ledger, by client_id.

    Args:
        ledger: the books; None: there are none yet, and nobody was charged.
        run_id: of the run itself; empty: it has charged nobody yet.
        datasets: dataset_id by client_id.
        new: makes the allowance of a client whose dataset has none, from its client_id and one that is in force on
            another dataset (None: there is none).
    """
    if ledger is None:
        return {client_id: Standing({}, new(client_id, None)) for client_id in datasets}
    accounts, allowances = ledger.accounts(datasets.values()), ledger.allowances(datasets.values())
    of_run = ledger.accounts_in_run(run_id, datasets.values()) if run_id else {}
    known = next(iter(allowances.values()), None)
    standings = {}
    for client_id, dataset in datasets.items():
        charged = of_run.get(dataset, NOTHING_SPENT).history
        past = without(accounts.get(dataset, NOTHING_SPENT).history, charged)
        standings[client_id] = Standing(past, allowances.get(dataset) or new(client_id, known), charged=charged)
    return standings


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

    def shared_noise(self, standings: Mapping[str, Standing], sampling_rate: float) -> float:
        """Return the noise multiplier that clients share, as in `fedprivacy.accounting.spend.shared_noise`.

        Raises:
            ValueError: no noise is enough for any of them.
        """
        limits: dict[object, RunLimit] = {}
        for client_id, standing in standings.items():
            limits.setdefault(standing.alike, self.limit(standing, client_id))
        return shared_noise(list(limits.values()), sampling_rate, self.steps, self.relation)

    def own_noise(
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
        for (first, *others), noise in zip(alike.values(), solve(searches), strict=True):
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


@dataclass(frozen=True, slots=True)
class UserLevelNoise:
    """The mechanism by which a run releases its clients' updates in each round, and the budget of each client."""

    mechanism: ClippedClientSum
    clipping_norm: float  # C of the first round
    budget: PrivacyBudget  # of each client as a whole; infinite: the run only measures

    @classmethod
    def of(cls, config: RunConfig) -> UserLevelNoise:
        """Return the noise of a run whose settings switch it on.

        Raises:
            ConfigError: says why no noise meets the budget, or that it does not allow one round.
        """
        budget = PrivacyBudget(config.user_level_epsilon or math.inf, config.user_level_delta)
        rate, adaptive = config.fraction_train, config.user_level_clipping == "adaptive"
        noise_multiplier = config.user_level_noise_multiplier or _least_noise(config, budget)
        quantile = 0.5 if config.user_level_quantile is None else config.user_level_quantile
        moving = count_and_sum(noise_multiplier, rate * config.clients, quantile) if adaptive else None
        mechanism = ClippedClientSum(PoissonSampledGaussian(rate, noise_multiplier), config.clients, moving)
        noise = cls(mechanism, config.user_level_clipping_norm or (0.1 if adaptive else 1.0), budget)
        if noise.rounds_left == 0:
            raise ConfigError(
                f"user-level-epsilon is {budget.epsilon} at user-level-delta {budget.delta}, which does not allow "
                f"one round with user-level-noise-multiplier {noise_multiplier}; raise one of them, lower "
                "fraction-train, or leave user-level-noise-multiplier open."
            )
        return noise

    @property
    def rounds_left(self) -> int:
        """Number of rounds that the budget allows in all."""
        event = self.mechanism.event
        return UserLevelAccount().rounds_left(self.budget, event.sampling_rate, event.noise_multiplier)

    def epsilon(self, rounds: int) -> float:
        """Return each client's epsilon after so many rounds, at the budget's delta."""
        account, event = UserLevelAccount(), self.mechanism.event
        account.record(event.sampling_rate, event.noise_multiplier, rounds)
        return account.epsilon(self.budget.delta).value


def _least_noise(config: RunConfig, budget: PrivacyBudget) -> float:
    try:
        return UserLevelAccount().noise_multiplier(budget, config.fraction_train, config.rounds)
    except ValueError as error:
        raise ConfigError(str(error)) from error
