"""A stored run as its figures need it: a bounded read, whatever the run's size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedprivacy.runs.store.reading import ClientQuery, RunStore
from fedprivacy.runs.store.rows import StoredClient, StoredRun
from fedprivacy.values.nulls import or_infinite
from fedprivacy.values.series import (
    MOST_COLUMNS,
    MOST_CURVES,
    MOST_ROUNDS,
    MOST_TURNS,
    CostMap,
    Curve,
    RunSeries,
    thinned,
)

FEW_CLIENTS = 200
"""Up to so many clients, all curves are read: many may be alike. More are a fan."""


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
    curves = _all_curves(store, run_id, most, rounds) if total <= FEW_CLIENTS else None
    fan = curves is None
    return RunSeries(
        facts=run.facts,
        points=points,
        worst=_worst(most[0]) if most else (0.0, math.inf),
        budgets=tuple(store.budgets(run_id)),
        curves=curves,
        outer=_outer(store, run_id, most, rounds) if fan else (),
        chosen=tuple(_curves_of(store, run_id, store.named_clients(run_id, chosen), rounds)) if chosen else (),
        turns=tuple(store.turns(run_id, MOST_TURNS)) if fan else (),
    )


def cost_map(store: RunStore, run: StoredRun, clients: Sequence[StoredClient]) -> CostMap:
    """What rounds cost some clients; many rounds share a column.

    Args:
        store: where the run is.
        run: as it is now.
        clients: the rows.
    """
    ends = _shown_rounds(run, MOST_COLUMNS)
    curves = store.curves(run.facts.run_id, clients, [0, *ends])
    return CostMap.of(curves.client_ids, ends, curves.epsilons)


def _shown_rounds(run: StoredRun, most: int = MOST_ROUNDS) -> range:
    return thinned(run.last.point.round if run.last else 0, most)


def _worst(client: StoredClient) -> tuple[float, float]:
    return or_infinite(client.epsilon), or_infinite(client.budget)


def _all_curves(
    store: RunStore, run_id: str, clients: Sequence[StoredClient], rounds: range
) -> tuple[Curve, ...] | None:
    """Those of all clients; None: there are none yet, or too many that differ."""
    curves = store.curves(run_id, clients, rounds).alike() if clients and rounds else []
    return tuple(curves) if 0 < len(curves) <= MOST_CURVES else None


def _outer(store: RunStore, run_id: str, most: Sequence[StoredClient], rounds: range) -> tuple[Curve, ...]:
    """The curves of the client that spent most and of the one that spent least."""
    _, least = store.clients(run_id, ClientQuery(descending=False, limit=1))
    return tuple(_curves_of(store, run_id, [*most[:1], *least], rounds)) if rounds else ()


def _curves_of(store: RunStore, run_id: str, clients: Sequence[StoredClient], rounds: range) -> list[Curve]:
    return [curve for curve in store.curves(run_id, clients, rounds).each() if curve.rounds]
