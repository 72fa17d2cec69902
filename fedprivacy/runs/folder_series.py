"""A run in memory as its figures need it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedprivacy.values.rounds import RoundResult
from fedprivacy.values.series import (
    MOST_CHOSEN,
    MOST_COLUMNS,
    MOST_CURVES,
    MOST_TURNS,
    ClientCurves,
    CostMap,
    Curve,
    RunFacts,
    RunSeries,
    stride,
    thinned,
)
from fedprivacy.values.spent import ClientSpent

if TYPE_CHECKING:
    from fedprivacy.runs.folder import RunHistory


def facts_of(history: RunHistory) -> RunFacts:
    """What does not change during a run. A history knows no run_id; without a folder it has the task's name."""
    facts = RunFacts(
        run_id="",
        name=Path(str(history.settings["out"])).name,
        settings=history.settings,
        noise_multiplier=history.noise_multiplier,
        relation=history.relation.value,
        metric=history.metric,
    )
    return facts if facts.name else replace(facts, name=facts.task)


def series_of(history: RunHistory, chosen: Sequence[str] = ()) -> RunSeries:
    """What a run's figures are drawn from.

    Args:
        history: the run.
        chosen: clients whose curves are drawn on top.

    Raises:
        ValueError: a chosen client is not enrolled, or there are more than `MOST_CHOSEN`.
    """
    spent = history.rounds[-1].spent if history.rounds else {}
    _check(chosen, spent)
    if not history.rounds:
        return RunSeries(facts_of(history), ())
    shown = [history.rounds[number - 1] for number in thinned(len(history.rounds))]
    curves = _curves(history, shown, spent).alike()
    fan = len(curves) > MOST_CURVES
    worst = max(spent.values(), key=lambda client: client.epsilon, default=None)
    return RunSeries(
        facts=facts_of(history),
        points=tuple(record.point for record in shown),
        worst=(worst.epsilon, worst.budget_epsilon) if worst else (0.0, math.inf),
        budgets=tuple(sorted({c.budget_epsilon for c in spent.values() if math.isfinite(c.budget_epsilon)})),
        curves=None if fan else tuple(curves),
        outer=(curves[0], curves[-1]) if fan else (),
        chosen=tuple(_curves(history, shown, chosen).each()),
        turns=_turns(curves) if fan else (),
    )


def costs_of(history: RunHistory, most: int) -> CostMap:
    """How much the rounds of a run cost the clients that spent most.

    A client that was enrolled during the run has no known growth before its second column.

    Args:
        history: the run.
        most: clients.
    """
    spent = history.last.spent.values()
    client_ids = [client.client_id for client in sorted(spent, key=lambda client: -client.epsilon)[:most]]
    ends = thinned(len(history.rounds), MOST_COLUMNS)
    epsilons = _epsilons([history.start, *(history.rounds[end - 1] for end in ends)], client_ids)
    return CostMap.of(client_ids, ends, epsilons)


def _check(chosen: Sequence[str], spent: Iterable[str]) -> None:
    unknown = sorted(set(chosen) - set(spent))
    if unknown:
        raise ValueError(f"the run has no client '{unknown[0]}'; choose from those in `last.spent`.")
    if len(chosen) > MOST_CHOSEN:
        raise ValueError(f"{len(chosen)} clients are chosen, and {MOST_CHOSEN} can be; choose fewer.")


def _curves(history: RunHistory, shown: Sequence[RoundResult], client_ids: Iterable[str]) -> ClientCurves:
    """Of these clients, in the rounds that are shown."""
    client_ids, last = list(client_ids), shown[-1].spent
    exhausted_in: dict[str, int] = {}
    for record in history.rounds:
        for client_id in record.exhausted:
            exhausted_in.setdefault(client_id, record.round)
    return ClientCurves(
        client_ids=client_ids,
        rounds=[record.round for record in shown],
        epsilons=_epsilons(shown, client_ids),
        exhausted_in=[exhausted_in.get(client_id) for client_id in client_ids],
        budgets=[last[client_id].budget_epsilon for client_id in client_ids],
    )


def _epsilons(records: Sequence[RoundResult], client_ids: Sequence[str]) -> NDArray[np.float64]:
    """Shape [records, clients]; not a number where a client was not enrolled."""

    def epsilon(client: ClientSpent | None) -> float:
        return math.nan if client is None else client.epsilon

    rows = [[epsilon(record.spent.get(client_id)) for client_id in client_ids] for record in records]
    return np.array(rows, dtype=np.float64).reshape(len(records), len(client_ids))


def _turns(curves: Sequence[Curve]) -> tuple[tuple[int, float], ...]:
    """Where the curves were exhausted, each place once; of many, evenly spread over the rounds."""
    found = sorted({turn for curve in curves if (turn := curve.turn) and math.isfinite(turn[1])})
    return tuple(found[:: stride(len(found), MOST_TURNS)])
