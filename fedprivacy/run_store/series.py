"""A stored run as its figures need it: a bounded read, whatever the run's size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedprivacy.run_store.reading import ClientQuery, RunStore
from fedprivacy.run_store.records import StoredClient, StoredRun
from fedprivacy.series import MOST_CURVES, MOST_TURNS, ClientCurves, CostMap, Curve, RunSeries, thinned

FEW_CLIENTS = 200
"""Up to so many clients, all curves are read: many may be alike. More are a fan."""

MOST_COLUMNS = 60
"""Of a heat map."""


def run_series(store: RunStore, run: StoredRun, chosen: Sequence[str] = ()) -> RunSeries:
    """A run as its figures need it.

    Args:
        store: where it is.
        run: as it is now.
        chosen: clients whose curves are drawn on top; unknown ones are left out.
    """
    run_id, rounds = run.facts.run_id, _shown_rounds(run)
    points = tuple(stored.point for stored in store.rounds(run_id, rounds))
    total, most = store.clients(run_id, ClientQuery(limit=FEW_CLIENTS))
    curves = store.curves(run_id, most, rounds).alike() if 0 < total <= FEW_CLIENTS and rounds else None
    return RunSeries(
        facts=run.facts,
        points=points,
        worst=_worst(most[0]) if most else (0.0, math.inf),
        budgets=tuple(store.budgets(run_id)),
        curves=tuple(curves) if curves and len(curves) <= MOST_CURVES else None,
        outer=_outer(store, run_id, most, rounds),
        chosen=tuple(_curves_of(store, run_id, store.named_clients(run_id, chosen), rounds)) if chosen else (),
        turns=tuple(store.turns(run_id, MOST_TURNS)),
    )


def cost_map(store: RunStore, run: StoredRun, clients: Sequence[StoredClient]) -> CostMap:
    """What rounds cost some clients; many rounds share a column.

    Args:
        store: where the run is.
        run: as it is now.
        clients: the rows.
    """
    last = list(_shown_rounds(run, MOST_COLUMNS))
    first = [before + 1 for before in [0, *last[:-1]]]
    curves: ClientCurves = store.curves(run.facts.run_id, clients, [0, *last])
    with np.errstate(invalid="ignore"):  # from no bound to no bound is no growth that could be named
        growth = np.diff(curves.epsilons, axis=0).T
    return CostMap(tuple(client.client_id for client in clients), tuple(first), tuple(last), growth)


def _shown_rounds(run: StoredRun, most: int | None = None) -> range:
    last = run.last.point.round if run.last else 0
    return thinned(last) if most is None else thinned(last, most)


def _worst(client: StoredClient) -> tuple[float, float]:
    return (
        math.inf if client.epsilon is None else client.epsilon,
        math.inf if client.budget is None else client.budget,
    )


def _outer(store: RunStore, run_id: str, most: Sequence[StoredClient], rounds: range) -> tuple[Curve, ...]:
    """The curves of the client that spent most and of the one that spent least."""
    _, least = store.clients(run_id, ClientQuery(descending=False, limit=1))
    return tuple(_curves_of(store, run_id, [*most[:1], *least], rounds)) if rounds else ()


def _curves_of(store: RunStore, run_id: str, clients: Sequence[StoredClient], rounds: range) -> list[Curve]:
    return [curve for curve in store.curves(run_id, clients, rounds).each() if curve.rounds]
