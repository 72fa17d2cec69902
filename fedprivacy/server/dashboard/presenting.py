"""Stored values as the API's answers: numbers as they are, and as people read them."""

from __future__ import annotations

import datetime
import math
import statistics
import time
from itertools import pairwise
from typing import Any

from fedprivacy.runs.store import ClientQuery, RunStore
from fedprivacy.runs.store.rows import Failures, StoredClient, StoredRound, StoredRun
from fedprivacy.runs.store.schema import RunStatus
from fedprivacy.server.dashboard import models
from fedprivacy.values.audits import AuditResult
from fedprivacy.values.nulls import finite_or_none, or_infinite
from fedprivacy.values.reasons import reason_of
from fedprivacy.values.wording import budget_text, delta_text, epsilon_text, metric_text, proved_text, reading_text

SILENCE = 60.0
"""Seconds without a sign of life after which a run is called silent; it gives one every ten."""

_RECENT = 10
"""Rounds whose median duration foretells the others'."""


def summary(run: StoredRun) -> models.RunSummary:
    """A run in a list."""
    return models.RunSummary(**_summary(run))


def detail(store: RunStore, run: StoredRun) -> models.Run:
    """A run with what its page needs."""
    run_id = run.facts.run_id
    _, most = store.clients(run_id, ClientQuery(limit=1))
    return models.Run(
        **_summary(run),
        settings=dict(run.facts.settings),
        seconds_left=_seconds_left(store, run),
        worst=_worst(most[0]) if most else None,
        states=store.state_counts(run_id),
        failures=store.failed_updates(run_id),
        guarantee=_guarantee(run, most[0] if most else None),
    )


def finished_round(run: StoredRun, stored: StoredRound) -> models.Round:
    """A round."""
    point, budget = stored.point, run.facts.settings.get("epsilon")
    spread = {name: finite_or_none(getattr(point.epsilons, name)) for name in models.Quantiles.model_fields}
    return models.Round(
        round=point.round,
        at=instant(stored.at),
        metrics={name: finite_or_none(value) for name, value in point.metrics.items()},
        metric_texts={name: metric_text(name, value) for name, value in point.metrics.items()},
        clients=point.clients,
        participants=point.participants,
        failed=point.failed,
        exhausted=point.exhausted,
        unreconciled=point.unreconciled,
        epsilon=models.Quantiles(**spread),
        epsilon_text=epsilon_text(point.epsilons.most, or_infinite(budget)),
    )


def client(run: StoredRun, stored: StoredClient) -> models.Client:
    """A client."""
    share = stored.share
    limited = stored.budget is not None
    return models.Client(
        client_id=stored.client_id,
        rounds=stored.rounds,
        averaged=stored.averaged,
        failed=stored.failed,
        steps=stored.steps,
        sampling_rate=stored.sampling_rate,
        noise_multiplier=run.facts.noise_multiplier,
        epsilon=stored.epsilon,
        epsilon_text=_epsilon(stored),
        delta=stored.delta,
        delta_text=delta_text(stored.delta),
        budget=stored.budget,
        budget_text=_budget(stored.budget),
        share=share,
        share_left=None if share is None else max(0.0, 1.0 - share),
        steps_left=stored.steps_left if limited else None,
        rounds_left=rounds_left(stored.steps_left, run) if limited else None,
        state=stored.state,
        reason=stored.reason,
        reason_words=reason_of(stored.reason).words if stored.reason else None,
    )


def failure(stored: Failures) -> models.Failure:
    """A reason, and what it means."""
    code, _, about = stored.reason.partition(":")
    meaning = reason_of(stored.reason)
    return models.Failure(
        code=code,
        detail=about,
        words=meaning.words,
        charge="returned" if meaning.refused else "stands",
        times=stored.times,
        clients=stored.clients,
        client_ids=list(stored.client_ids),
        last_round=stored.last_round,
    )


def audit(result: AuditResult) -> models.Audit:
    """An audit."""
    return models.Audit(
        at=instant(result.at),
        attack=result.attack,
        client_id=result.client_id,
        lower=result.lower,
        lower_text=proved_text(result.lower),
        confidence=result.confidence,
        upper=finite_or_none(result.upper),
        upper_text=epsilon_text(result.upper),
        delta=result.delta,
        accountant=result.accountant,
        view=result.view,
        verdict=result.verdict,
    )


def rounds_left(steps_left: int, run: StoredRun) -> int:
    """Rounds that so many steps last, the last of them perhaps with fewer."""
    return math.ceil(steps_left / run.facts.local_steps)


def instant(seconds: float) -> str:
    """ISO 8601, UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _summary(run: StoredRun) -> dict[str, Any]:
    facts, last = run.facts, run.last
    return {
        "run_id": facts.run_id,
        "name": facts.name,
        "task": facts.task,
        "strategy": facts.strategy,
        "metric": facts.metric,
        "metrics": sorted(last.point.metrics) if last else [],
        "status": run.status,
        "silent": run.status is RunStatus.RUNNING and time.time() - run.updated > SILENCE,
        "phase": _phase(run),
        "started": instant(run.started),
        "updated": instant(run.updated),
        "rounds": last.point.round if last else 0,
        "rounds_planned": facts.rounds,
        "clients": last.point.clients if last else 0,
        "noise_multiplier": facts.noise_multiplier,
        "relation": facts.relation,
        "local_steps": facts.local_steps,
        "seeded": facts.settings.get("seed") is not None,
        "delta": facts.delta,
        "delta_text": delta_text(facts.delta),
        "last": finished_round(run, last) if last else None,
    }


def _phase(run: StoredRun) -> models.Phase | None:
    if run.status is not RunStatus.RUNNING:
        return None
    if not run.stage:
        return models.Phase(name="starting", round=0, clients=0)
    return models.Phase(name=run.stage, round=run.stage_round, clients=run.stage_clients)


def _seconds_left(store: RunStore, run: StoredRun) -> float | None:
    """The rounds that are left, each as long as the median of the last ones."""
    last = run.last.point.round if run.last else 0
    if run.status is not RunStatus.RUNNING or last == 0:
        return None
    recent = [stored.at for stored in store.rounds(run.facts.run_id, range(max(0, last - _RECENT), last + 1))]
    durations = [after - before for before, after in pairwise(recent)]
    return statistics.median(durations) * (run.facts.rounds - last) if durations else None


def _worst(stored: StoredClient) -> models.Worst:
    return models.Worst(
        client_id=stored.client_id,
        epsilon=stored.epsilon,
        epsilon_text=_epsilon(stored),
        budget=stored.budget,
        budget_text=_budget(stored.budget),
    )


def _guarantee(run: StoredRun, worst: StoredClient | None) -> str:
    protected = (
        "what one record of a client says"
        if run.facts.relation == "zero-out"
        else "whether one record of a client was used"
    )
    budget = or_infinite(worst.budget if worst else run.facts.settings.get("epsilon"))
    return (
        f"ε bounds what the server can learn about {protected}, from every update of every round and run charged to "
        f"its shard, at δ = {delta_text(run.facts.delta)}, by the PLD accountant. {reading_text(budget)}"
    )


def _epsilon(stored: StoredClient) -> str:
    return epsilon_text(or_infinite(stored.epsilon), or_infinite(stored.budget))


def _budget(budget: float | None) -> str:
    return "none" if budget is None else budget_text(budget)
