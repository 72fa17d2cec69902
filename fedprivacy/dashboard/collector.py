"""Metrics of runs for Prometheus, read from the store on request: training pays nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from fastapi import Response
from prometheus_client import metrics_core
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fedprivacy.ledger import LedgerError
from fedprivacy.runs.records.catalogue import Catalogue
from fedprivacy.runs.records.store import StoredRun
from fedprivacy.values.columns import CLIENT_COLUMNS
from fedprivacy.values.runs import RunStanding, RunTally
from fedprivacy.values.series import RoundPoint, RunFacts
from fedprivacy.values.spent import REASONS, ClientStanding, ClientState
from fedprivacy.values.wording import delta_text

MOST_CLIENTS = 200
"""Maximum number of clients of a run with a series for each: Prometheus would keep every one of them."""

MOST_ENDED = 50
"""Maximum number of runs that ended in the last day and are still reported: the newest."""

DAY = 24 * 3600.0
"""Seconds for which a run is reported after its end."""

WEEK = 7 * DAY
"""Seconds of silence after which a run that never reported its end is not reported either."""


@dataclass(frozen=True, slots=True)
class _Clients:
    """Standing of a run's clients as of a number of changes; each client, unless they are many."""

    changes: int
    tally: RunTally
    each: list[ClientStanding]


class RunCollector:
    """Collector of the metrics of a catalogue's runs; an unchanged run is not read again. For concurrent use."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._known: dict[str, _Clients | None] = {}

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of every reported run."""
        listing = self._catalogue.listing()
        page, told = _Page(len(listing.databases)), list(told_of(listing.runs))
        self._known = known = {run.facts.run_id: self._clients(run) for run in told}
        for run in told:
            page.add(run, known[run.facts.run_id])
        return page.families()

    def exposition(self, accept: str) -> Response:
        """Answer a scrape of Prometheus, in the format that it asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # the header names a version that is no number
            encode, content_type = choose_encoder("")
        return Response(encode(self), media_type=content_type)

    def _clients(self, run: RunStanding) -> _Clients | None:
        """Return the standing of a run's clients; None: its store cannot be read now."""
        run_id = run.facts.run_id
        known, store = self._known.get(run_id), self._catalogue.store_of(run_id)
        if known and known.changes == run.changes:
            return known
        if store is None:
            return None
        stored = StoredRun(store, run)
        try:
            tally = stored.tally()
            few = sum(tally.states.values()) <= MOST_CLIENTS
            each = stored.spenders(MOST_CLIENTS) if few else []
        except LedgerError:  # the catalogue reports it
            return None
        if not run.running:
            store.close()  # an ended run changes no more; its store opens again on request
        return _Clients(run.changes, tally, each)


def told_of(runs: Iterable[RunStanding]) -> Iterator[RunStanding]:
    """Select the runs in progress, and the newest of those that ended in the last day; each once, even with copies."""
    now, each = time.time(), {run.facts.run_id: run for run in runs}.values()
    ended = []
    for run in sorted(each, key=lambda run: run.updated, reverse=True):
        if not run.running:
            ended += [run] * (now - run.updated < DAY)
        elif now - run.updated < WEEK:
            yield run
    yield from ended[:MOST_ENDED]


_OF_RUN = ("run", "name", "task")

_EPSILON = (
    "in epsilon, which has no unit: the server's view, by the PLD accountant, over all rounds and runs. An odometer's "
    "reading: what is guaranteed is the budget. +Inf: no bound is known. Delta:"
)

_QUANTILES = ("0", "0.25", "0.5", "0.75", "1")
"""Quantiles of an `EpsilonSpread`."""

_ONLY_FEW = f"Only of runs with at most {MOST_CLIENTS} clients."


def _gauge(name: str, help: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fedprivacy_{name}", help, labels=(*_OF_RUN, *labels))


class _Page:
    """All metrics of one scrape."""

    def __init__(self, unreadable: int) -> None:
        self.info = metrics_core.InfoMetricFamily(
            "fedprivacy_run",
            "A run: its status, whether it has privacy, and what its epsilon means (view, accountant, delta, "
            "neighbouring relation, unit of privacy); seeded: whoever knows the seed can take the noise away.",
            labels=_OF_RUN,
        )
        self.unreadable = GaugeMetricFamily(
            "fedprivacy_databases_unreadable", "Databases whose runs are not up to date here.", value=unreadable
        )
        self.round = _gauge("run_round", "Finished rounds.")
        self.rounds_planned = _gauge("run_rounds_planned", "Rounds that the run was asked for.")
        self.noise_multiplier = _gauge(
            "run_noise_multiplier",
            "Sigma of every local step, in multiples of the clipping norm; the least of any client's.",
        )
        self.sign_of_life = _gauge(
            "run_last_sign_of_life_seconds",
            "When the run last wrote, in seconds since 1970, UTC; a running one does every ten.",
        )
        self.metric = _gauge(
            "run_metric", "Of the global model after the last round, on the server's public records.", "metric"
        )
        self.averaged = _gauge("updates_averaged", "Updates that the last round's average holds.")
        self.failed = metrics_core.CounterMetricFamily(
            "fedprivacy_updates_failed",
            "Updates that were asked for and not used, over all rounds of the run.",
            labels=(*_OF_RUN, "reason"),
        )
        self.clients = _gauge("clients", "Enrolled clients in each state.", "state")
        self.epsilon = metrics_core.SummaryMetricFamily(
            "fedprivacy_epsilon",
            f"Quantiles over the run's clients of their privacy loss {_EPSILON} see fedprivacy_run_info.",
        )
        self.budget = _gauge(
            "epsilon_budget", "The smallest epsilon budget of the run's clients; missing if none has a budget."
        )
        self.share = _gauge(
            "epsilon_budget_share_max",
            "The largest share of its epsilon budget that a client of the run has spent, 1: all of it; the server's "
            "view, by the PLD accountant, at the budget's delta. +Inf: no bound on its epsilon is known.",
        )
        self.client_epsilon = _gauge(
            "client_epsilon", f"Privacy loss of a client {_EPSILON} in the label. {_ONLY_FEW}", "client_id", "delta"
        )
        self.by_client = {
            column: _gauge(f"client_{column.name}", f"{column.gauge} {_ONLY_FEW}", "client_id")
            for column in CLIENT_COLUMNS
            if column.gauge
        }

    def families(self) -> list[Metric]:
        return [found for found in vars(self).values() if isinstance(found, Metric)] + [*self.by_client.values()]

    def add(self, run: RunStanding, clients: _Clients | None) -> None:
        """Add a run's own facts, its last round, and the standing of its clients."""
        facts = run.facts
        run_labels = [facts.run_id, facts.name, facts.task]
        about = {
            "status": str(run.status),
            "privacy": str(facts.private).lower(),
            "relation": facts.relation,
            "unit": facts.unit,
            "view": "server",
            "accountant": "PLD",
            "delta": delta_text(facts.delta),
            "seeded": str(facts.settings.get("seed") is not None).lower(),
            "strategy": facts.strategy,
        }
        self.info.add_metric(run_labels, about)
        self.round.add_metric(run_labels, run.finished)
        self.rounds_planned.add_metric(run_labels, facts.rounds)
        self.noise_multiplier.add_metric(run_labels, facts.noise_multiplier)
        self.sign_of_life.add_metric(run_labels, run.updated)
        if run.last:
            self._add_round(run_labels, run.last, facts)
        if clients:
            self._add_clients(run_labels, clients, facts)

    def _add_round(self, run_labels: list[str], point: RoundPoint, facts: RunFacts) -> None:
        self.averaged.add_metric(run_labels, point.participants)
        for name, value in sorted(point.metrics.items()):
            self.metric.add_metric([*run_labels, name], value)
        epsilons = astuple(point.epsilons) if point.clients and facts.private else ()
        for quantile, epsilon in zip(_QUANTILES, epsilons, strict=False):
            labels = dict(zip((*_OF_RUN, "quantile"), (*run_labels, quantile), strict=True))
            self.epsilon.add_sample(self.epsilon.name, labels, epsilon)

    def _add_clients(self, run_labels: list[str], clients: _Clients, facts: RunFacts) -> None:
        tally = clients.tally
        for state in ClientState:
            self.clients.add_metric([*run_labels, state], tally.states.get(state, 0))
        failures = Counter(dict.fromkeys(REASONS, 0))  # start at 0, so that the first failure of a kind is an increase
        for reason, times in tally.failures.items():
            failures[reason.partition(":")[0]] += times
        for code, times in failures.items():
            self.failed.add_metric([*run_labels, code], times)
        if tally.least_budget is not None:
            self.budget.add_metric(run_labels, tally.least_budget)
        if tally.most_share is not None:
            self.share.add_metric(run_labels, tally.most_share)
        for client in clients.each:
            spent = client.spent
            if facts.private:
                self.client_epsilon.add_metric([*run_labels, spent.client_id, delta_text(spent.delta)], spent.epsilon)
            for column, family in self.by_client.items():
                if (value := column.value(facts, client)) is not None:
                    family.add_metric([*run_labels, spent.client_id], value)
