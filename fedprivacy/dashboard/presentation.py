"""The API's answers: their bodies, and the presentation of runs, rounds, clients, failures and audits in them.

JSON has no infinity: a missing bound or budget is null. Every epsilon is the server's view, by PLD, at the delta beside
it, composed over all rounds and runs; `*_text` is the same for people, never rounded down.
"""

from __future__ import annotations

import datetime
import statistics
import time
from contextlib import suppress
from dataclasses import astuple
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, Field, create_model

from fedprivacy.accounting.risk import Risk
from fedprivacy.figures.named import NAMED_FIGURES
from fedprivacy.runs.records.store import StoredRun
from fedprivacy.values.columns import CLIENT_COLUMNS, json_row
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


class QuantilesBody(BaseModel):
    """Quantiles of the epsilons of all clients."""

    least: float | None
    quarter: float | None
    median: float | None
    three_quarters: float | None
    most: float | None


class Round(BaseModel):
    """A finished round."""

    round: int = Field(description="0 is the state before the first round")
    at: str = Field(description="time of recording, ISO 8601")
    metrics: dict[str, float | None]
    metric_texts: dict[str, str]
    clients: int
    participants: int = Field(description="clients whose update was averaged")
    failed: int = Field(description="clients whose update was asked for and not used")
    exhausted: int
    unreconciled: int
    epsilon: QuantilesBody
    epsilon_text: str = Field(description="the largest epsilon of a client")


class RoundsBody(BaseModel):
    """A page of rounds, ascending."""

    total: int
    rounds: list[Round]


class PhaseBody(BaseModel):
    """The current activity of a run."""

    name: str
    round: int
    clients: int


class RunSummary(BaseModel):
    """A run in a list."""

    run_id: str
    name: str
    task: str
    strategy: str
    metric: str = Field(description="the metric that is shown first")
    metrics: list[str]
    status: str = Field(description="running, finished, stopped (nobody had budget left) or failed")
    silent: bool = Field(description="whether a running run has given no sign of life for a minute")
    phase: PhaseBody | None
    started: str
    updated: str
    rounds: int
    rounds_planned: int
    clients: int
    privacy: bool = Field(description="false: a baseline, a simulation without clipping and noise; it has no epsilon")
    noise_multiplier: float | None = Field(
        description="the smallest of any client's, 0 until a client with its own has enrolled; null without privacy"
    )
    largest_noise_multiplier: float | None = Field(
        description="differs from noise_multiplier if clients have their own"
    )
    relation: str
    unit: str = Field(description="unit of privacy: record, or such as patient (at most 8 rows)")
    local_steps: int
    asks: bool = Field(description="whether it asked questions and trained nothing: its metrics are the answers")
    seeded: bool = Field(description="true: anybody who knows the seed can remove the noise")
    view: str = "server"
    accountant: str = "PLD"
    delta: float
    delta_text: str
    last: Round | None


class Runs(BaseModel):
    """A page of runs, the newest first."""

    total: int
    runs: list[RunSummary]
    problems: list[str] = Field(description="why some databases and folders of runs could not be read")


class FigureBody(BaseModel):
    """A figure that a run, or many together, can have."""

    name: str
    title: str
    about: str


class ExperimentBody(BaseModel):
    """A run among others: what it was given, and the newest value of everything that it measured."""

    run_id: str
    run: str
    task: str
    status: str
    tags: list[str]
    note: str
    started: str
    rounds: int
    rounds_planned: int
    epsilon: float | None = Field(description="largest of a client; null: none, or no bound")
    epsilon_text: str
    metric: str
    metrics: dict[str, float | None]
    metric_texts: dict[str, str]
    settings: dict[str, Any]


class Experiments(BaseModel):
    """A page of runs with their settings and metrics."""

    total: int
    runs: list[ExperimentBody]
    differing: list[str] = Field(description="settings in which the selected runs differ")
    metrics: list[str] = Field(description="everything that one of them has measured")
    main: list[str] = Field(description="of these, those that are no client's extreme")
    figures: list[FigureBody] = Field(description="figures that all of them can have")


class Worst(BaseModel):
    """The client that spent most."""

    client_id: str
    epsilon: float | None
    epsilon_text: str
    budget: float | None
    budget_text: str


class RunBody(RunSummary):
    """A run, with everything that its page needs at a glance."""

    settings: dict[str, Any]
    seconds_left: float | None
    worst: Worst | None
    states: dict[str, int] = Field(description="number of clients in each state")
    failures: int = Field(description="updates that were asked for and not used")
    guarantee: str
    figures: list[FigureBody]


_CLIENT: dict[str, Any] = {each.name: (each.kind, Field(description=each.about or None)) for each in CLIENT_COLUMNS}

Client = create_model("Client", __doc__="A client's present state.", **_CLIENT)


class Clients(BaseModel):
    """A page of clients."""

    total: int = Field(description="number of matches")
    clients: list[Client]  # type: ignore[valid-type]


class EpsilonAfter(BaseModel):
    """A client's epsilon after a round."""

    round: int
    epsilon: float | None


class ClientRounds(BaseModel):
    """A client, and its epsilon round by round."""

    client: Client  # type: ignore[valid-type]
    rounds: list[EpsilonAfter]


class ChargeBody(BaseModel):
    """A charge in the ledger."""

    client_id: str
    dataset_id: str
    round: int = Field(description="0: a client's own figure was higher")
    attempt: int
    steps: int
    sampling_rate: float
    noise_multiplier: float
    relation: str
    view: str
    state: str = Field(description="reserved (no receipt yet; it counts), committed or void")
    entry: int = Field(description="entry of the ledger's journal")


class Charges(BaseModel):
    """A page of charges, the newest first."""

    total: int
    charges: list[ChargeBody]


class Failure(BaseModel):
    """One reason for which updates were asked for and not used."""

    code: str
    detail: str
    words: str
    charge: str = Field(description="outcome of the charge: stands or returned")
    times: int
    clients: int
    client_ids: list[str] = Field(description="some of them")
    last_round: int


class FailuresBody(BaseModel):
    """Failures by reason, the most frequent first."""

    failures: list[Failure]


class Audit(BaseModel):
    """The result of an audit: the loss that an attack proves, beside the accountant's bound."""

    at: str
    attack: str
    client_id: str
    lower: float
    lower_text: str = Field(description="never rounded up")
    confidence: float
    upper: float | None
    upper_text: str = Field(description="never rounded down")
    delta: float
    accountant: str
    view: str
    verdict: str


class Audits(BaseModel):
    """All audits of a run."""

    audits: list[Audit]


class ProblemBody(BaseModel):
    """The reason why there is no answer."""

    detail: str


def summary(run: RunStanding) -> RunSummary:
    """Present a run in a list."""
    return RunSummary(**_summary(run))


def detail(run: StoredRun) -> RunBody:
    """Present a run with everything that its page needs."""
    top, tally = next(iter(run.spenders(1)), None), run.tally()
    metrics = _metrics(run)
    return RunBody(
        **_summary(run.now) | {"metrics": metrics, "metric": shown_metric(run.facts.metric, metrics)},
        seconds_left=_seconds_left(run),
        worst=Worst(**json_row(run.facts, top, words=True)) if top else None,
        states=dict(tally.states),
        failures=sum(tally.failures.values()),
        guarantee=_guarantee(run, top.spent if top else None),
        figures=[
            FigureBody(name=name, title=figure.title, about=figure.about)
            for name, figure in NAMED_FIGURES.items()
            if figure.shows(run.facts)
        ],
    )


def finished_round(facts: RunFacts, point: RoundPoint) -> Round:
    """Present a round."""
    said = {
        "at": _instant(point.at),
        "metric_texts": {name: metric_text(name, value) for name, value in point.metrics.items()},
        "epsilon": plain(point.epsilons),
        "epsilon_text": facts.epsilon_text(point.epsilons.most, facts.budget),
    }
    return Round(**plain(point) | said)


def client(facts: RunFacts, standing: ClientStanding) -> BaseModel:
    """Present a client."""
    body: BaseModel = Client(**json_row(facts, standing, words=True))
    return body


def failure(found: Failures) -> Failure:
    """Present a reason and its meaning."""
    code, _, detail = found.reason.partition(":")
    meaning = reason_of(found.reason)
    charge = "returned" if meaning.refused else "stands"
    return Failure(**plain(found), code=code, detail=detail, words=meaning.words, charge=charge)


def audit(result: AuditResult) -> Audit:
    """Present an audit."""
    texts = {"lower_text": proved_text(result.lower), "upper_text": epsilon_text(result.upper)}
    return Audit(**plain(result) | texts | {"at": _instant(result.at), "verdict": result.verdict})


def _summary(run: RunStanding) -> dict[str, Any]:
    facts, last = run.facts, run.last
    derived = {name: getattr(facts, name) for name in ("task", "strategy", "local_steps", "asks", "delta")}
    return (
        plain(facts)
        | derived
        | {
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
            "privacy": facts.private,
            "noise_multiplier": facts.noise_multiplier if facts.private else None,
            "largest_noise_multiplier": facts.largest_noise_multiplier if facts.private else None,
            "seeded": facts.settings.get("seed") is not None,
            "delta_text": delta_text(facts.delta),
            "last": finished_round(facts, last) if last else None,
        }
    )


def _metrics(run: StoredRun) -> list[str]:
    """List the names of all metrics: the last round's, and those of the newest round in which clients evaluated."""
    every = run.facts.schedule.local_evaluation
    newest = run.finished // every * every if every else 0
    points = [run.now.last, *run.points(range(newest, newest + 1))] if newest else [run.now.last]
    return sorted({name for point in points if point for name in point.metrics})


def _instant(seconds: float) -> str:
    """Format a time as ISO 8601, UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def _phase(run: RunStanding) -> PhaseBody | None:
    if not run.running:
        return None
    stage, round, clients = astuple(run.phase) if run.phase else ("starting", 0, 0)
    return PhaseBody(name=stage, round=round, clients=clients)


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
    executed = frozenset(run.history_of(worst.client_id).items())
    risk = _risk(executed, worst.epsilon, worst.delta)
    return f" At the client that has spent most: {risk.sentence(unit=Unit.of(run.facts.unit).name)} {risk.basis}"


@lru_cache(maxsize=256)
def _risk(executed: frozenset[tuple[Event, int]], epsilon: float, delta: float) -> Risk:
    """Return the risk after what was executed; where nothing is known of it or composes it, that of the epsilon."""
    with suppress(ValueError):
        if executed:
            return Risk.of_history(dict(executed), delta)
    return Risk.of_budget(epsilon, delta)
