"""A run as its figures, report and page read it: its rounds in memory, and the data of figures from its store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprivacy.values.columns import json_row
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.metrics import measured_names, shown_metric
from fedprivacy.values.numbers import finite_or_none, plain
from fedprivacy.values.runs import RoundResult
from fedprivacy.values.series import (
    MOST_CHOSEN,
    MOST_COLUMNS,
    MOST_CURVES,
    MOST_TURNS,
    CostMap,
    Curve,
    RunFacts,
    RunSeries,
    spread_rounds,
)
from fedprivacy.values.spent import ClientSpent, ClientStanding
from fedprivacy.values.unit import RECORD

if TYPE_CHECKING:
    from fedprivacy.accounting.risk import Risk
    from fedprivacy.runs.records.store import StoredRun

MOST_ROWS = 40
"""Clients of a cost map: those that spent most, unless some are named."""


def series_of(run: StoredRun, chosen: Sequence[ClientStanding] = ()) -> RunSeries:
    """The series of a run's figures, with the curves of the chosen clients on top."""
    rounds = spread_rounds(run.finished)
    if not rounds:
        return RunSeries(run.facts, ())
    curves, edges = _curves(run, rounds)
    points = tuple(run.points(rounds))
    metric = shown_metric(run.facts.metric, measured_names(point.metrics for point in points))
    worst = next(((most.spent.epsilon, most.spent.budget_epsilon) for most in run.spenders(1)), (0.0, math.inf))
    turns = run.turns(MOST_TURNS) if edges else ()
    return RunSeries(
        facts=replace(run.facts, metric=metric),
        points=points,
        worst=worst,
        budgets=tuple(run.budgets()),
        states=run.tally().states,
        curves=curves,
        outer=edges,
        chosen=tuple(run.curves(chosen, rounds).each()) if chosen else (),
        turns=tuple((max(number, rounds[0]), epsilon) for number, epsilon in turns),
    )


def costs_of(run: StoredRun, chosen: Sequence[ClientStanding] | None = None, most: int = MOST_ROWS) -> CostMap:
    """The cost of each round to the chosen clients; None: to those that spent most.

    Many rounds share a column. A client that was enrolled during the run has no known growth before its second one.
    """
    clients = run.spenders(most) if chosen is None else chosen
    ends = spread_rounds(run.finished, MOST_COLUMNS)
    epsilons = run.curves(clients, [0, *ends]).epsilons
    return CostMap.of([client.client_id for client in clients], ends, epsilons)


def _curves(run: StoredRun, rounds: range) -> tuple[tuple[Curve, ...] | None, tuple[Curve, ...]]:
    """Every curve, those that are alike as one; of too many none, but the first and the last of them."""
    if run.now.last and run.now.last.clients > run.store.few:
        edges = [*run.spenders(1), *run.spenders(1, least=True)]
        return None, tuple(run.curves(edges, rounds).each())
    curves = run.curves(run.everybody(), rounds).alike()
    return (None, (curves[0], curves[-1])) if len(curves) > MOST_CURVES else (tuple(curves), ())


@dataclass(frozen=True)
class RunHistory:
    """A run's public facts and its finished rounds.

    Attributes:
        settings: the configuration by hyphenated key.
        noise_multiplier: sigma of the local steps of clients without noise of their own; 0 without privacy; None: each
            client has the least for its own sampling rate, see `ClientSpent.noise_multiplier`.
        relation: the neighbouring relation of every event.
        task_metric: name of the metric that the task shows first.
        start: the state before the first round.
        rounds: finished rounds in order.
        unit: the unit of privacy, as `str(Unit)` writes it.
    """

    settings: Mapping[str, Any]
    noise_multiplier: float | None
    relation: NeighbouringRelation
    task_metric: str
    start: RoundResult
    rounds: tuple[RoundResult, ...]
    unit: str = str(RECORD)

    @property
    def last(self) -> RoundResult:
        """The state now: after the last round, or before the first."""
        return self.rounds[-1] if self.rounds else self.start

    @property
    def worst(self) -> ClientSpent:
        """The account of the client that has spent most."""
        return max(self.last.spent.values(), key=lambda client: client.epsilon)

    @cached_property
    def risk(self) -> Risk | None:
        """The risk of one unit at that client; None: the run has no privacy, or no client yet."""
        from fedprivacy.accounting.risk import Risk

        if not (self.facts.private and self.last.spent):
            return None
        charged, delta = self.last.most_charged, self.worst.delta
        # A run of an earlier version tells its epsilon alone.
        return Risk.of_history(charged, delta) if charged else Risk.of_budget(self.worst.epsilon, delta)

    @cached_property
    def metrics(self) -> list[str]:
        """Names of all metrics that any round measured."""
        return measured_names(result.metrics for result in (self.start, *self.rounds))

    @property
    def metric(self) -> str:
        """Name of the metric that is shown first: the task's, or the nearest that was measured instead."""
        return shown_metric(self.task_metric, self.metrics)

    @property
    def newest_metrics(self) -> dict[str, float]:
        """The newest value of every metric, by name: some are measured in some rounds only."""
        return {name: value for result in (self.start, *self.rounds) for name, value in result.metrics.items()}

    @property
    def last_evaluated(self) -> RoundResult | None:
        """The newest round with local evaluations; None: there is none."""
        return next((record for record in reversed(self.rounds) if record.evaluations), None)

    @property
    def last_held_out(self) -> RoundResult | None:
        """The newest round after which clients' models were measured on held-out records; None: there is none."""
        return next((record for record in reversed(self.rounds) if record.held_out), None)

    @property
    def finished(self) -> int:
        """The newest finished round; 0: none."""
        return len(self.rounds)

    @cached_property
    def facts(self) -> RunFacts:
        """The facts that do not change. A run in memory knows no run_id; without a folder it has its task's name."""
        noises = [client.noise_multiplier for client in self.last.spent.values()] or [self.noise_multiplier or 0.0]
        facts = RunFacts(
            run_id="",
            name=Path(str(self.settings["out"])).name,
            settings=self.settings,
            noise_multiplier=min(noises),
            relation=self.relation.value,
            metric=self.metric,
            largest_noise_multiplier=max(noises),
            unit=self.unit,
        )
        return facts if facts.name else replace(facts, name=facts.task)

    def series(self, chosen: Sequence[str] = ()) -> RunSeries:
        """The series of the run's figures, with the curves of the chosen clients on top.

        Raises:
            ValueError: a chosen client is not enrolled, or there are more than 10.
        """
        return series_of(self.stored, self._standings_of(chosen))

    def costs(self, chosen: Sequence[str] = (), most: int = MOST_ROWS) -> CostMap:
        """The cost of each round to the chosen clients, or to at most `most` that spent most.

        Raises:
            ValueError: a chosen client is not enrolled, or there are more than 10.
        """
        return costs_of(self.stored, self._standings_of(chosen) or None, most)

    def _standings_of(self, chosen: Sequence[str]) -> list[ClientStanding]:
        unknown = sorted(set(chosen) - set(self.last.spent))
        if unknown:
            raise ValueError(f"the run has no client '{unknown[0]}'; choose from those in `last.spent`.")
        if len(chosen) > MOST_CHOSEN:
            raise ValueError(f"{len(chosen)} clients are chosen, and {MOST_CHOSEN} can be; choose fewer.")
        return [self.standings[client_id] for client_id in chosen]

    def summary(self) -> dict[str, Any]:
        """The final figures: what `fedprivacy simulate --json` prints. Without privacy every epsilon is None."""
        metrics = plain(self.newest_metrics)
        return {
            "accuracy": metrics.get("accuracy"),
            "metrics": metrics,
            "rounds": len(self.rounds),
            **({} if self.last.clock is None else {"simulated_seconds": self.last.clock}),
            "clients": [json_row(self.facts, self.standings[client_id]) for client_id in self.last.spent],
            "max_epsilon": finite_or_none(self.last.max_epsilon),
            "privacy": self.facts.private,
            **({"user_level": plain(self.last.user_level)} if self.last.user_level else {}),
        }

    @cached_property
    def stored(self) -> StoredRun:
        """These rounds in a run store, in memory: the reader of the data of figures."""
        from fedprivacy.runs.records.store import in_memory

        return in_memory(self.facts, (self.start, *self.rounds))

    @cached_property
    def standings(self) -> dict[str, ClientStanding]:
        """Every client's standing after the last round, by client_id, in the order of their enrolment."""
        return {client.client_id: client for client in self.stored.everybody()}
