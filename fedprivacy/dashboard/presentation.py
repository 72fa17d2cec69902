"""Presentation of values as the API's answers: numbers under their names, and texts for people."""

from __future__ import annotations

import datetime
import statistics
import time
from contextlib import suppress
from dataclasses import astuple
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from fedprivacy.accounting.risk import Risk
from fedprivacy.dashboard import models
from fedprivacy.figures.named import NAMED_FIGURES
from fedprivacy.runs.records.store import StoredRun
from fedprivacy.values.columns import json_row
from fedprivacy.values.events import Event
from fedprivacy.values.metrics import shown_metric
from fedprivacy.values.numbers import plain
from fedprivacy.values.runs import AuditResult, Failures, RunStanding
from fedprivacy.values.series import RoundPoint, RunFacts
from fedprivacy.values.spent import ClientSpent, ClientStanding, reason_of
from fedprivacy.values.unit import Unit
from fedprivacy.values.wording import delta_text, epsilon_text, metric_text, proved_text, reading_text

SILENCE = 60.0
"""Seconds without a sign of life after which a run is called silent; it sends one every ten."""

_RECENT = 10
"""Number of rounds whose median duration predicts the others'."""


def summary(run: RunStanding) -> models.RunSummary:
    """Present a run in a list."""
    return models.RunSummary(**_summary(run))


def detail(run: StoredRun) -> models.RunBody:
    """Present a run with everything that its page needs."""
    top, tally = next(iter(run.spenders(1)), None), run.tally()
    metrics = _metrics(run)
    return models.RunBody(
        **_summary(run.now) | {"metrics": metrics, "metric": shown_metric(run.facts.metric, metrics)},
        seconds_left=_seconds_left(run),
        worst=models.Worst(**json_row(run.facts, top, words=True)) if top else None,
        states=dict(tally.states),
        failures=sum(tally.failures.values()),
        guarantee=_guarantee(run, top.spent if top else None),
        figures=[
            models.FigureBody(name=name, title=figure.title, about=figure.about)
            for name, figure in NAMED_FIGURES.items()
            if figure.shows(run.facts)
        ],
    )


def finished_round(facts: RunFacts, point: RoundPoint) -> models.Round:
    """Present a round."""
    said = {
        "at": _instant(point.at),
        "metric_texts": {name: metric_text(name, value) for name, value in point.metrics.items()},
        "epsilon": plain(point.epsilons),
        "epsilon_text": facts.epsilon_text(point.epsilons.most, facts.budget),
    }
    return models.Round(**plain(point) | said)


def client(facts: RunFacts, standing: ClientStanding) -> BaseModel:
    """Present a client."""
    body: BaseModel = models.Client(**json_row(facts, standing, words=True))
    return body


def failure(found: Failures) -> models.Failure:
    """Present a reason and its meaning."""
    code, _, detail = found.reason.partition(":")
    meaning = reason_of(found.reason)
    charge = "returned" if meaning.refused else "stands"
    return models.Failure(**plain(found), code=code, detail=detail, words=meaning.words, charge=charge)


def audit(result: AuditResult) -> models.Audit:
    """Present an audit."""
    texts = {"lower_text": proved_text(result.lower), "upper_text": epsilon_text(result.upper)}
    return models.Audit(**plain(result) | texts | {"at": _instant(result.at), "verdict": result.verdict})


def _summary(run: RunStanding) -> dict[str, Any]:
    facts, last = run.facts, run.last
    return plain(facts) | {
        "task": facts.task,
        "strategy": facts.strategy,
        "metric": shown_metric(facts.metric, last.metrics if last else ()),
        "metrics": sorted(last.metrics) if last else [],
        "status": run.status,
        "silent": run.running and time.time() - run.updated > SILENCE,
        "phase": _phase(run),
        "started": _instant(run.started),
        "updated": _instant(run.updated),
        "rounds": run.finished,
        "rounds_planned": facts.rounds,
        "clients": last.clients if last else 0,
        "local_steps": facts.local_steps,
        "privacy": facts.private,
        "noise_multiplier": facts.noise_multiplier if facts.private else None,
        "largest_noise_multiplier": facts.largest_noise_multiplier if facts.private else None,
        "asks": facts.asks,
        "seeded": facts.settings.get("seed") is not None,
        "delta": facts.delta,
        "delta_text": delta_text(facts.delta),
        "last": finished_round(facts, last) if last else None,
    }


def _metrics(run: StoredRun) -> list[str]:
    """List the names of all metrics: the last round's, and those of the newest round in which clients evaluated."""
    every = run.facts.schedule.local_evaluation
    newest = run.finished // every * every if every else 0
    points = [run.now.last, *run.points(range(newest, newest + 1))] if newest else [run.now.last]
    return sorted({name for point in points if point for name in point.metrics})


def _instant(seconds: float) -> str:
    """Format a time as ISO 8601, UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _phase(run: RunStanding) -> models.PhaseBody | None:
    if not run.running:
        return None
    stage, round, clients = astuple(run.phase) if run.phase else ("starting", 0, 0)
    return models.PhaseBody(name=stage, round=round, clients=clients)


def _seconds_left(run: StoredRun) -> float | None:
    """Estimate the remaining time: the remaining rounds, each as long as the median of the last ones."""
    last = run.finished
    if not run.now.running or last == 0:
        return None
    recent = [point.at for point in run.points(range(max(0, last - _RECENT), last + 1))]
    durations = [after - before for before, after in pairwise(recent)]
    return statistics.median(durations) * (run.facts.rounds - last) if durations else None


def _guarantee(run: StoredRun, worst: ClientSpent | None) -> str:
    facts = run.facts
    if not facts.private:
        return (
            "A baseline: no privacy. Nothing was clipped, no noise was added and nothing was charged, so that nothing "
            f"bounds what the server can learn about any {facts.unit}."
        )
    protected = (
        f"what one {facts.unit} of a client says"
        if facts.relation == "zero-out"
        else f"whether one {facts.unit} of a client was used"
    )
    return (
        f"ε bounds what the server can learn about {protected}, from every update of every round and run charged to "
        f"its shard, at δ = {delta_text(facts.delta)}, by the PLD accountant. "
        f"{reading_text(worst.budget_epsilon if worst else facts.budget)}{_in_words(run, worst)}"
    )


def _in_words(run: StoredRun, worst: ClientSpent | None) -> str:
    """Say what an attacker finds at the client that has spent most, by all that its dataset was charged."""
    if worst is None:
        return ""
    executed = frozenset(run.executed(worst.client_id).items())
    risk = _risk(executed, worst.epsilon, worst.delta)
    return f" At the client that has spent most: {risk.sentence(unit=Unit.of(run.facts.unit).name)} {risk.basis}"


@lru_cache(maxsize=256)
def _risk(executed: frozenset[tuple[Event, int]], epsilon: float, delta: float) -> Risk:
    """Return the risk after what was executed; where nothing is known of it or composes it, that of the epsilon."""
    with suppress(ValueError):
        if executed:
            return Risk.of_history(dict(executed), delta)
    return Risk.of_budget(epsilon, delta)
