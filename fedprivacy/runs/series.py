"""A run as its figures need it, read from wherever it is: a folder's history in memory, or the run store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fedprivacy.values.series import (
    MOST_COLUMNS,
    MOST_CURVES,
    MOST_TURNS,
    ClientCurves,
    CostMap,
    Curve,
    RoundPoint,
    RunFacts,
    RunSeries,
    thinned,
)
from fedprivacy.values.spent import ClientStanding

MOST_ROWS = 40
"""Clients of a cost map: those that spent most, unless some are named."""


class RunReader(Protocol):
    """One run. What it answers is as large as what is asked for, however large the run is.

    Attributes:
        facts: what does not change.
        finished: the newest finished round; 0: none.
    """

    facts: RunFacts
    finished: int

    def points(self, rounds: range) -> Sequence[RoundPoint]:
        """Some finished rounds."""

    def everybody(self) -> Sequence[ClientStanding] | None:
        """All clients; None: there are too many to read all their curves."""

    def spenders(self, most: int, *, least: bool = False) -> Sequence[ClientStanding]:
        """So many of the clients that spent most, the first of them first, or of those that spent least."""

    def named(self, client_ids: Sequence[str]) -> Sequence[ClientStanding]:
        """Clients by name; unknown ones are missing."""

    def curves(self, clients: Sequence[ClientStanding], rounds: Sequence[int]) -> ClientCurves:
        """The epsilons of some clients after some rounds, of which 0 is the state before the first."""

    def budgets(self) -> Sequence[float]:
        """The different finite budgets of all clients, ascending."""

    def turns(self, most: int) -> Sequence[tuple[int, float]]:
        """In which rounds clients were exhausted, and at which epsilon; of many, evenly spread over the rounds."""


def series_of(run: RunReader, chosen: Sequence[str] = ()) -> RunSeries:
    """What a run's figures are drawn from.

    Args:
        run: the run.
        chosen: clients whose curves are drawn on top; unknown ones are left out.
    """
    rounds = thinned(run.finished)
    if not rounds:
        return RunSeries(run.facts, ())
    curves, edges = _curves(run, rounds)
    worst = next(((most.spent.epsilon, most.spent.budget_epsilon) for most in run.spenders(1)), (0.0, math.inf))
    turns = run.turns(MOST_TURNS) if edges else ()
    return RunSeries(
        facts=run.facts,
        points=tuple(run.points(rounds)),
        worst=worst,
        budgets=tuple(run.budgets()),
        curves=curves,
        outer=edges,
        chosen=tuple(run.curves(run.named(chosen), rounds).each()) if chosen else (),
        turns=tuple((max(number, rounds[0]), epsilon) for number, epsilon in turns),
    )


def costs_of(run: RunReader, most: int = MOST_ROWS, chosen: Sequence[str] = ()) -> CostMap:
    """How much the rounds of a run cost clients; many rounds share a column.

    A client that was enrolled during the run has no known growth before its second column.

    Args:
        run: the run.
        most: clients, those that spent most.
        chosen: these clients instead.
    """
    clients = run.named(chosen) if chosen else run.spenders(most)
    ends = thinned(run.finished, MOST_COLUMNS)
    epsilons = run.curves(clients, [0, *ends]).epsilons
    return CostMap.of([client.client_id for client in clients], ends, epsilons)


def _curves(run: RunReader, rounds: range) -> tuple[tuple[Curve, ...] | None, tuple[Curve, ...]]:
    """Every curve, those that are alike as one; of too many none, but the first and the last of them."""
    everybody = run.everybody()
    if everybody is None:
        edges = [*run.spenders(1), *run.spenders(1, least=True)]
        return None, tuple(run.curves(edges, rounds).each())
    curves = run.curves(everybody, rounds).alike()
    return (None, (curves[0], curves[-1])) if len(curves) > MOST_CURVES else (tuple(curves), ())
