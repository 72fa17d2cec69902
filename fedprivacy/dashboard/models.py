"""Bodies of the API's answers. JSON has no infinity: a missing bound or budget is null.

Every epsilon is the server's view, by PLD, at the delta beside it, composed over all rounds and runs; `*_text` is the
same for people, never rounded down.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, create_model

from fedprivacy.values.columns import CLIENT_COLUMNS


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
