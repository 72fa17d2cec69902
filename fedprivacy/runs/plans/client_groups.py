"""Clients that will spend alike, together: what plans, tables and the accountant show of a population."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedprivacy.ledger import Allowance
from fedprivacy.runs.plans.plan import RunPlan
from fedprivacy.tasks import ShardSource
from fedprivacy.tasks.loader import shard_of
from fedprivacy.values.events import History, PoissonSampledGaussian


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
    shards = (shard_of(plan.task, ShardSource(partition_id=n, num_partitions=parts)) for n in range(len(client_ids)))
    return {client_id: len(shard) for client_id, shard in zip(client_ids, shards, strict=True)}
