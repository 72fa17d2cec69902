"""Microbatches, which other libraries offer and this one refuses: what they would cost."""

from __future__ import annotations

from dataclasses import replace

from fedprivacy.accounting import pld
from fedprivacy.runs.plan import TrainingPlan
from fedprivacy.values.wording import epsilon_text

NAMES = frozenset({"microbatches", "num-microbatches", "microbatch-size", "num_microbatches", "microbatch_size"})
"""Names of the setting in other libraries."""


def refusal(plan: TrainingPlan) -> str:
    """Say why there is no such setting, and what the run would cost with it.

    To clip the mean gradient of a group to C bounds what the group says, not what one record does: without the record
    the mean may point the other way, so that the sum moves by up to 2 C. That is so if every other record stays in its
    group; where groups are cut from a sample, it moves all of them. Noise for C is half of what 2 C needs.
    """
    event, steps = plan.event(), plan.total_steps
    halved = replace(event, noise_multiplier=event.noise_multiplier / 2.0)
    claimed, true = (pld.epsilon({each: steps}, plan.config.delta) for each in (event, halved))
    return (
        "microbatches are not offered: a group's mean that is clipped to C may turn round when one record leaves it, "
        f"and so move the sum by 2 C. With noise for C, what would be called epsilon {epsilon_text(claimed)} would be "
        f"{epsilon_text(true)} at least. Every record is clipped by itself; leave the setting out."
    )
