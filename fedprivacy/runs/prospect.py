"""The cost of a run for its clients, those that will spend alike together, and as plain rows. Nothing is run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedprivacy.accounting import more_runs, runs_left
from fedprivacy.accounting.filters import filter_of
from fedprivacy.accounting.histories import without
from fedprivacy.accounting.spend import shortage
from fedprivacy.ledger import Allowance
from fedprivacy.ledger.database import check_folder
from fedprivacy.runs.plans.advice import budget_advice, simulated_sizes, training_advice
from fedprivacy.runs.plans.plan import RunPlan
from fedprivacy.runs.records.folder import plan_of
from fedprivacy.runs.settings.configuration import ConfigError
from fedprivacy.runs.settings.keywords import Given, GivenTask, by_key, spelt_as_keywords, takes_settings
from fedprivacy.tasks import ShardSource
from fedprivacy.values.events import History, NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.numbers import finite_or_none
from fedprivacy.values.runs import Rows
from fedprivacy.values.wording import budget_text, count_text

log = logging.getLogger("fedprivacy.runs")

_NO_STEP = 1e-9
"""Largest difference of two epsilons, in nats, that is rounding: every step costs more."""


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """Clients that will spend alike: each local step costs `event`, after the same `past`, within one `allowance`.

    Where the task's own question is asked first, `question` is what it costs, and part of the past.
    """

    client_ids: list[str]
    event: PoissonSampledGaussian
    past: History
    allowance: Allowance
    question: PoissonSampledGaussian | None = None


def client_groups(plan: RunPlan, disclosed: Mapping[str, int] | None = None) -> list[ClientGroup]:
    """Group a run's clients before its first step.

    Args:
        plan: of the run.
        disclosed: how many records each client that has come disclosed; None: none has, and these are the simulated
            ones, or those of a deployment that the ledger knows.

    Raises:
        ConfigError: no noise meets the budget of some of them.
    """
    standings = plan.standings(disclosed)
    events = plan.events_of(standings, _simulated_sizes(plan, standings) if disclosed is None else disclosed)
    groups: dict[object, ClientGroup] = {}
    for client_id, standing in standings.items():
        event = events[client_id]
        key = event, *standing.alike, plan.finds_noise(client_id)
        alike = groups.setdefault(key, ClientGroup([], event, standing.past, standing.allowance, standing.question))
        alike.client_ids.append(client_id)
    return list(groups.values())


def _simulated_sizes(plan: RunPlan, client_ids: Collection[str]) -> dict[str, int]:
    """Number of records that simulated clients would disclose, by client_id; 0 where it does not matter."""
    if not plan.rates_differ:  # then no shard is loaded
        return dict.fromkeys(client_ids, 0)
    parts = plan.config.clients
    shards = (plan.task.shard(ShardSource(partition_id=n, num_partitions=parts)) for n in range(len(client_ids)))
    return {client_id: len(shard) for client_id, shard in zip(client_ids, shards, strict=True)}


@dataclass(frozen=True, slots=True)
class Prospect:
    """The cost of a run.

    Attributes:
        noise_multiplier: sigma of a local step, in clipping norms, of clients without noise of their own; None: each
            has its own, for its own sampling rate.
        delta: at which the epsilons hold.
        relation: the neighbouring relation that they hold for.
        unit: the unit of privacy, such as "record" or "patient (at most 8 rows)".
        clients: a row for each: `client_id`; `sampling_rate` and `noise_multiplier` of its local steps; `budget`, its
            epsilon over all runs; `epsilon_before`, what it has spent before the run; `epsilon_question`, what the
            answer to the task's own question adds before the first round; `epsilon_by_round`, its privacy loss after
            each round over all runs on its shard, should it join until its budget or the spend is spent;
            `epsilon_left` of its budget after the run; and `runs_left`, how many more such runs that allows, of which
            at most 20 are counted. These two and `budget` are None without a budget.
    """

    noise_multiplier: float | None
    delta: float
    relation: NeighbouringRelation
    unit: str
    clients: Rows

    @classmethod
    def of(cls, plan: RunPlan) -> Prospect:
        """The prospect of a plan's clients."""
        clients = Rows(
            {
                "client_id": client_id,
                "sampling_rate": outlook.group.event.sampling_rate,
                "noise_multiplier": outlook.group.event.noise_multiplier,
                "budget": finite_or_none(outlook.group.allowance.budget.epsilon),
                "epsilon_before": outlook.before,
                "epsilon_question": outlook.question,
                "epsilon_by_round": list(outlook.by_round),
                "epsilon_left": finite_or_none(outlook.left),
                "runs_left": outlook.runs_left,
            }
            for outlook in spending(plan)
            for client_id in outlook.group.client_ids
        )
        return cls(plan.noise.shared, plan.config.delta, plan.relation, str(plan.unit), clients)


@takes_settings
def plan(task: GivenTask = None, **settings: Given) -> Prospect:
    """Tell what a run would cost every simulated client, and the noise that the budget needs. Runs nothing.

    >>> import fedprivacy as fp
    >>> prospect = fp.plan("digits", epsilon=1.0, rounds=40)
    >>> round(prospect.noise_multiplier, 1), len(prospect.clients)
    (10.2, 10)
    >>> prospect.clients[0]["epsilon_by_round"][-1] <= 1.0
    True

    Args:
        task: an object of a `Task`, its class, a built-in task's name, or "path/to/file.py:Name"; None: "digits".
        settings: of the run, see below; those of `simulate`.

    Raises:
        ConfigError: lists everything that is wrong with the settings, or says why no noise meets the budget.
        LedgerError: the ledger that is named cannot be read.
    """
    with spelt_as_keywords():
        return Prospect.of(plan_of(*by_key(task, settings)))


@dataclass(frozen=True, slots=True)
class Outlook:
    """The privacy loss of clients that spend alike: before the run, in it, and left after it."""

    group: ClientGroup
    before: float  # epsilon before the run
    question: float  # what the answer to the task's own question adds to it; 0: nothing is asked
    by_round: list[float]  # epsilon after each round
    left: float  # of the budget's epsilon after the run; infinite: there is no budget
    runs_left: int | None  # such runs that could follow; None: as many as one likes


def spending(plan: RunPlan) -> list[Outlook]:
    """Each group of clients that spend alike, with its loss after each round; warns of what may surprise.

    Raises:
        ConfigError: the run is without privacy, or terms are for some simulated clients and for others that are none.
        LedgerError: the ledger that is named is in a folder that is not there.
    """
    if not plan.config.privacy:
        raise ConfigError("privacy is off, so no epsilon bounds what the run costs; leave privacy open to plan it.")
    if plan.client_terms.unknown(plan.simulated_clients) != list(plan.client_terms.by_client):  # else a deployment's
        plan.client_terms.check_names(plan.simulated_clients)
    if plan.config.ledger:
        check_folder(plan.config.ledger)
    for advice in (*budget_advice(plan, simulated_sizes(plan)), *training_advice(plan)):
        log.warning("%s", advice)
    outlooks = [_outlook(plan, group) for group in client_groups(plan)]
    for outlook in outlooks:
        if outlook.by_round[-1] <= outlook.before + outlook.question + _NO_STEP:
            group = outlook.group
            log.warning(
                "Of %s, not one step with noise multiplier %.4g fits into what is left of epsilon %s; raise epsilon or "
                "noise-multiplier.%s",
                count_text(len(group.client_ids), "client"),
                group.event.noise_multiplier,
                budget_text(group.allowance.budget.epsilon),
                _shortage(group, plan.total_steps),
            )
    return outlooks


def _shortage(group: ClientGroup, steps: int) -> str:
    """Say what the filter has to do with it, after a blank; empty: its budget allows a step, and the spend does not."""
    kept = filter_of(group.allowance)
    return "" if more_runs(kept, group.past, group.event, 1) else f" {shortage(kept, group.past, group.event, steps)}"


def _outlook(plan: RunPlan, group: ClientGroup) -> Outlook:
    limit, budget = plan.limit(group.past, group.allowance), group.allowance.budget
    by_round = plan.epsilon_by_round(group.event, group.past, group.allowance).tolist()
    solved_anew = plan.finds_noise(group.client_ids[0]) and plan.config.spend is not None
    further = runs_left(limit, group.event, plan.total_steps, solved_anew=solved_anew) if budget.enforced else None
    past = without(group.past, {group.question: 1}) if group.question else group.past
    before = plan.limit(past, group.allowance).before_epsilon
    left = max(budget.epsilon - by_round[-1], 0.0)
    return Outlook(group, before, limit.before_epsilon - before, by_round, left, further)
