"""Advice before a run. It refuses nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedprivacy.runs.plans.plan import RunPlan
from fedprivacy.tasks import ShardSource
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.tasks.loader import shard_of
from fedprivacy.values.wording import budget_text, count_text, delta_text, noise_text


def about_budget(plan: RunPlan) -> str:
    """Say that a given noise multiplier leaves a run without its task's budget; else return an empty text."""
    noise, usual = plan.config.noise_multiplier, plan.task.recipe.epsilon
    if noise is None or plan.config.budget.enforced or not math.isfinite(usual):
        return ""
    epsilon = budget_text(usual)
    return (
        f"noise-multiplier {noise_text(noise)} was given: the task's epsilon {epsilon} is no budget of this run; give "
        f"epsilon {epsilon}, too, for one."
    )


def about_delta(plan: RunPlan, sizes: Mapping[str, float]) -> str:
    """Say that a run's delta is too large if it is above 1 / records of a client; else return an empty text.

    Whoever publishes each record with probability delta keeps (0, delta)-differential privacy.

    Args:
        plan: of the run.
        sizes: *public* sizes by client_id, as `RunPlan.shard_size` gives them: what clients disclosed, or the task's
            public guess. A size that is private must not get here.
    """
    delta = plan.config.delta
    if not sizes or delta * max(sizes.values()) <= 1.0:
        return ""
    largest = max(sizes, key=lambda client_id: sizes[client_id])
    records = int(sizes[largest])
    counted = count_text(records, plan.unit.name)
    whose = f"{largest} has {counted}"
    if not plan.task.shard_sizes_public:
        whose = f"a client has about {counted} (the task's nominal_shard_size)"
    return (
        f"delta is {delta_text(delta)}, and {whose}: to publish each of them with that probability would keep the "
        f"promise. Choose a delta well below 1 / {records}, for example {_tenth_of_inverse(records)}."
    )


def simulated_sizes(plan: RunPlan) -> dict[str, float]:
    """The public sizes of a plan's simulated clients, by client_id; those that cannot be known before are missing."""
    parts = plan.config.clients
    if not plan.task.shard_sizes_public:
        return {simulated_client_id(0, parts): plan.shard_size(0)}
    sizes = {}
    for part in range(parts):
        try:
            shard = shard_of(plan.task, ShardSource(partition_id=part, num_partitions=parts))
        except Exception:  # the task's own code: it may know of real clients only, who disclose their sizes later
            return {}
        sizes[simulated_client_id(part, parts)] = plan.shard_size(len(shard))
    return sizes


def _tenth_of_inverse(records: int) -> str:
    """A power of ten that is at most a tenth of 1 / records."""
    return delta_text(float(f"1e-{len(str(records - 1)) + 1}"))
