"""A run in memory: its public facts and its finished rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivacy.runs.series import MOST_ROWS, costs_of, series_of
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.nulls import finite_or_none, plain
from fedprivacy.values.rounds import Roster, RoundResult
from fedprivacy.values.series import MOST_CHOSEN, ClientCurves, CostMap, RoundPoint, RunFacts, RunSeries, stride
from fedprivacy.values.spent import ClientStanding

if TYPE_CHECKING:
    from fedprivacy.figures import RunFigures


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run's public facts and its finished rounds.

    Attributes:
        settings: the configuration by hyphenated key.
        noise_multiplier: sigma of every local step.
        relation: the neighbouring relation of every event.
        metric: key of the figure that is shown first.
        start: the state before the first round.
        rounds: finished rounds in order.
    """

    settings: Mapping[str, Any]
    noise_multiplier: float
    relation: NeighbouringRelation
    metric: str
    start: RoundResult
    rounds: tuple[RoundResult, ...]

    @property
    def last(self) -> RoundResult:
        """The state now: after the last round, or before the first."""
        return self.rounds[-1] if self.rounds else self.start

    @property
    def figures(self) -> RunFigures:
        """The run's figures: `history.figures.epsilon()` in a notebook's cell shows one."""
        from fedprivacy.figures.notebook import RunFigures

        return RunFigures(self.series, self.costs)

    def series(self, chosen: Sequence[str] = ()) -> RunSeries:
        """What figures are drawn from.

        Args:
            chosen: clients whose curves are drawn on top.

        Raises:
            ValueError: a chosen client is not enrolled, or there are more than 10.
        """
        unknown = sorted(set(chosen) - set(self.last.spent))
        if unknown:
            raise ValueError(f"the run has no client '{unknown[0]}'; choose from those in `last.spent`.")
        if len(chosen) > MOST_CHOSEN:
            raise ValueError(f"{len(chosen)} clients are chosen, and {MOST_CHOSEN} can be; choose fewer.")
        return series_of(HistoryReader(self), chosen)

    def costs(self, most: int = MOST_ROWS) -> CostMap:
        """How much each round cost the clients that spent most, so many at most."""
        return costs_of(HistoryReader(self), most)

    def summary(self) -> dict[str, Any]:
        """The final figures: what `fedprivacy simulate --json` prints."""
        metrics = plain(self.last.metrics)
        return {
            "accuracy": metrics.get("accuracy"),
            "metrics": metrics,
            "rounds": len(self.rounds),
            "clients": [
                {
                    "client_id": client.client_id,
                    "epsilon": finite_or_none(client.epsilon),
                    "delta": client.delta,
                    "budget": finite_or_none(client.budget_epsilon),
                    "rounds": client.rounds,
                    "sampling_rate": client.sampling_rate,
                    "noise_multiplier": self.noise_multiplier,
                    "steps": client.steps,
                }
                for client in self.last.spent.values()
            ],
            "max_epsilon": finite_or_none(self.last.max_epsilon),
        }


class HistoryReader:
    """Reads a run that is in memory, all of it.

    Args:
        history: the run. It knows no run_id; without a folder it has its task's name.
    """

    def __init__(self, history: RunHistory) -> None:
        facts = RunFacts(
            run_id="",
            name=Path(str(history.settings["out"])).name,
            settings=history.settings,
            noise_multiplier=history.noise_multiplier,
            relation=history.relation.value,
            metric=history.metric,
        )
        self.facts = facts if facts.name else replace(facts, name=facts.task)
        self.finished = len(history.rounds)
        self._results = (history.start, *history.rounds)
        roster = Roster()
        for result in self._results:
            roster.add(result)
        self._clients = roster.clients

    def points(self, rounds: range) -> list[RoundPoint]:
        """Some finished rounds."""
        return [self._results[number].point for number in rounds]

    def everybody(self) -> list[ClientStanding]:
        """All clients."""
        return list(self._clients.values())

    def spenders(self, most: int, *, least: bool = False) -> list[ClientStanding]:
        """So many of the clients that spent most, or least; equals in the order of their enrolment."""
        sign = 1 if least else -1
        return sorted(self._clients.values(), key=lambda client: sign * client.spent.epsilon)[:most]

    def named(self, client_ids: Sequence[str]) -> list[ClientStanding]:
        """Clients by name, in this order."""
        return [self._clients[client_id] for client_id in client_ids if client_id in self._clients]

    def curves(self, clients: Sequence[ClientStanding], rounds: Sequence[int]) -> ClientCurves:
        """The epsilons of some clients after some rounds."""
        epsilons = np.full((len(rounds), len(clients)), np.nan)
        for row, number in enumerate(rounds):
            spent = self._results[number].spent
            for column, client in enumerate(clients):
                if client.client_id in spent:
                    epsilons[row, column] = spent[client.client_id].epsilon
        return ClientCurves(clients, rounds, epsilons)

    def budgets(self) -> list[float]:
        """The different finite budgets of all clients, ascending."""
        return sorted({client.spent.budget_epsilon for client in self._clients.values() if client.spent.limited})

    def turns(self, most: int) -> list[tuple[int, float]]:
        """Where clients were exhausted, each place once."""
        found = sorted(
            {
                (client.exhausted_in, client.spent.epsilon)
                for client in self._clients.values()
                if client.exhausted_in is not None and math.isfinite(client.spent.epsilon)
            }
        )
        return found[:: stride(len(found), most)]
