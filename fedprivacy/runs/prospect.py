"""What a run would cost every simulated client, as plain rows. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass

from fedprivacy.runs.configuration import ConfigError
from fedprivacy.runs.folder import plan_of
from fedprivacy.runs.keywords import Given, GivenTask, by_key, spelt_as_keywords, takes_settings
from fedprivacy.runs.plan import ClientGroup, RunPlan, client_groups
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.runs import Rows


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a run would cost.

    Attributes:
        noise_multiplier: sigma of every local step, in clipping norms.
        delta: at which the epsilons hold.
        relation: the neighbouring relation that they hold for.
        clients: a row for each: `client_id`, `sampling_rate`, and `epsilon_by_round`, its privacy loss after each round
            over all runs on its shard, should it join until its budget is spent.
    """

    noise_multiplier: float
    delta: float
    relation: NeighbouringRelation
    clients: Rows

    @classmethod
    def of(cls, plan: RunPlan) -> Prospect:
        """What the clients of a plan would spend."""
        clients = Rows(
            {"client_id": client_id, "sampling_rate": group.event.sampling_rate, "epsilon_by_round": list(epsilons)}
            for group, epsilons in spending(plan)
            for client_id in group.client_ids
        )
        return cls(plan.noise_multiplier, plan.config.delta, plan.relation, clients)


@takes_settings
def plan(task: GivenTask = None, **settings: Given) -> Prospect:
    """What a run would cost every simulated client, and the noise that the budget needs. Runs nothing.

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


def spending(plan: RunPlan) -> list[tuple[ClientGroup, list[float]]]:
    """What each group of clients that spend alike would have spent after each round.

    Raises:
        ConfigError: the run is without privacy.
    """
    if not plan.config.privacy:
        raise ConfigError(["privacy is off, so no epsilon bounds what the run costs; leave privacy open to plan it."])
    return [(group, plan.epsilon_by_round(group.event, group.past).tolist()) for group in client_groups(plan)]
