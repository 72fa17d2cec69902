"""What the API answers with. JSON has no infinity: what has no bound, and a budget that is none, is null.

Every epsilon is the server's view, by PLD, at the delta beside it, composed over all rounds and runs; `*_text` is the
same for people, never rounded down.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Quantiles(BaseModel):
    """Of the epsilons of all clients."""

    least: float | None
    quarter: float | None
    median: float | None
    three_quarters: float | None
    most: float | None


class Round(BaseModel):
    """A finished round."""

    round: int = Field(description="0 is the state before the first round")
    at: str = Field(description="when it was recorded, ISO 8601")
    metrics: dict[str, float | None]
    metric_texts: dict[str, str]
    clients: int
    participants: int = Field(description="clients whose update was averaged")
    failed: int = Field(description="clients whose update was asked for and not used")
    exhausted: int
    unreconciled: int
    epsilon: Quantiles
    epsilon_text: str = Field(description="the largest epsilon of a client")


class Rounds(BaseModel):
    """A page of rounds, ascending."""

    total: int
    rounds: list[Round]


class Phase(BaseModel):
    """What a run is doing."""

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
    phase: Phase | None
    started: str
    updated: str
    rounds: int
    rounds_planned: int
    clients: int
    privacy: bool = Field(description="false: a baseline, a simulation without clipping and noise; it has no epsilon")
    noise_multiplier: float | None = Field(
        description="the least of any client's, 0 as long as none has come with its own; null without privacy"
    )
    largest_noise_multiplier: float | None = Field(description="another where clients have their own")
    relation: str
    local_steps: int
    asks: bool = Field(description="whether it asked questions and trained nothing: its metrics are the answers")
    seeded: bool = Field(description="whoever knows the seed can take the noise away")
    view: str = "server"
    accountant: str = "PLD"
    delta: float
    delta_text: str
    last: Round | None


class Runs(BaseModel):
    """A page of runs, the newest first."""

    total: int
    runs: list[RunSummary]
    problems: list[str] = Field(description="why some databases could not be read")


class Worst(BaseModel):
    """The client that spent most."""

    client_id: str
    epsilon: float | None
    epsilon_text: str
    budget: float | None
    budget_text: str


class Run(RunSummary):
    """A run, with all that its page needs at a glance."""

    settings: dict[str, Any]
    seconds_left: float | None
    worst: Worst | None
    states: dict[str, int] = Field(description="how many clients are in each state")
    failures: int = Field(description="updates that were asked for and not used")
    guarantee: str


class Client(BaseModel):
    """A client's present state."""

    client_id: str
    rounds: int = Field(description="charged, over all runs")
    averaged: int = Field(description="rounds of this run whose average holds its update")
    failed: int = Field(description="rounds of this run that asked for an update and did not use it")
    steps: int = Field(description="charged, over all runs")
    sampling_rate: float
    noise_multiplier: float | None = Field(description="null without privacy")
    epsilon: float | None
    epsilon_text: str
    delta: float
    delta_text: str
    budget: float | None
    budget_text: str
    share: float | None = Field(description="epsilon over budget")
    share_left: float | None
    steps_left: int | None
    rounds_left: int | None = Field(description="rounds that the budget still allows, if it joins every one")
    state: str
    reason: str | None
    reason_words: str | None


class Clients(BaseModel):
    """A page of clients."""

    total: int = Field(description="how many match")
    clients: list[Client]


class EpsilonAfter(BaseModel):
    """A client's epsilon after a round."""

    round: int
    epsilon: float | None


class ClientRounds(BaseModel):
    """A client, and its epsilon round by round."""

    client: Client
    rounds: list[EpsilonAfter]


class Charge(BaseModel):
    """A charge, as the ledger holds it."""

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
    entry: int = Field(description="of the ledger's journal")


class Charges(BaseModel):
    """A page of charges, the newest first."""

    total: int
    charges: list[Charge]


class Failure(BaseModel):
    """One reason for which updates were asked for and not used."""

    code: str
    detail: str
    words: str
    charge: str = Field(description="what became of it: stands or returned")
    times: int
    clients: int
    client_ids: list[str] = Field(description="some of them")
    last_round: int


class Failures(BaseModel):
    """By reason, the most frequent first."""

    failures: list[Failure]


class Audit(BaseModel):
    """What an audit found: a loss that an attack proves, beside the one that the accountant guarantees."""

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


class Asked(BaseModel):
    """What a budget would allow at another noise multiplier."""

    noise_multiplier: float
    steps_left: int | None
    rounds_left: int | None
    allowed: bool = Field(description="whether the filter that enforces the budget takes this noise multiplier")
    words: str


class Forecast(BaseModel):
    """What a client's budget still allows, at its noise multiplier in the run and at another."""

    client_id: str
    epsilon: float | None
    epsilon_text: str
    budget: float | None
    budget_text: str
    filter: str
    delta: float
    view: str = "server"
    accountant: str = "PLD"
    noise_multiplier: float
    rounds_left: int | None
    asked: Asked


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str
