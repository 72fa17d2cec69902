"""Shortage: why a filter allows no step though epsilon is left, and what helps."""

from __future__ import annotations

import math
from dataclasses import replace

from fedprivacy.accounting.filters import FILTERS, SHARE_FOR_OTHERS, AdaptiveFilter, Filter, FixedMechanismFilter
from fedprivacy.accounting.histories import extended
from fedprivacy.accounting.spend import more_runs
from fedprivacy.values.events import Event, History, PoissonSampledGaussian, is_unsampled_gaussian
from fedprivacy.values.wording import count_text


def shortage(kept: Filter, past: History, event: PoissonSampledGaussian, steps: int) -> str:
    """Name the filter and the noise that leave fewer steps of an event after a past than are wanted, and what helps.

    >>> from fedprivacy.values.budget import PrivacyBudget
    >>> from fedprivacy.values.events import NeighbouringRelation
    >>> kept = FILTERS["adaptive"](PrivacyBudget(1.0, 1e-5))
    >>> event = PoissonSampledGaussian(0.05, 1.0, NeighbouringRelation.ZERO_OUT)
    >>> past = {event: kept.quota({}, event)}
    >>> why, helps = shortage(kept, past, event, 40).split(". ")
    >>> why
    'With noise multiplier 1 the adaptive filter allows no step more: its RDP bound lies above the epsilon that is read'

    Args:
        kept: filter that keeps the budget.
        past: everything that was executed.
        event: one step.
        steps: number of steps that are wanted, more than are allowed.
    """
    more = more_runs(kept, past, event, 1)
    name = next(name for name, kind in FILTERS.items() if kind is type(kept))
    return (
        f"With noise multiplier {event.noise_multiplier:.4g} the {name} filter allows "
        f"{count_text(more, 'more step') if more else 'no step more'}: "
        f"{_bound(kept, past, event)}. {_remedy(kept, past, event, steps)}"
    )


def _bound(kept: Filter, past: History, event: Event) -> str:
    """Say how a filter bounds a past with one more step."""
    try:
        history = extended(past, event, 1)
    except ValueError:
        return "no theorem composes what was executed"
    if isinstance(kept, AdaptiveFilter):
        return "its RDP bound lies above the epsilon that is read"
    if len(history) == 1 or (not isinstance(kept, FixedMechanismFilter) and all(map(is_unsampled_gaussian, history))):
        return "further ones would exceed the budget"
    if isinstance(kept, FixedMechanismFilter):
        return "it keeps its promise for one mechanism alone, and another was executed before"
    return (
        f"for several mechanisms it has {SHARE_FOR_OTHERS:.0%} of delta and an RDP bound, which lies above the epsilon "
        "that is read"
    )


def _remedy(kept: Filter, past: History, event: PoissonSampledGaussian, steps: int) -> str:
    """Say which noise helps: that of earlier steps, or one for all steps that are wanted; or what else does."""
    earlier = [event for event in past if isinstance(event, PoissonSampledGaussian)]
    left, same = max(((more_runs(kept, past, e, 1), e.noise_multiplier) for e in earlier), default=(0, 0.0))
    if left < steps:
        try:
            enough = math.ceil(100 * kept.noise_multiplier(event.sampling_rate, steps, event.relation, past)) / 100
            if kept.quota(past, replace(event, noise_multiplier=enough)) >= steps:
                return f"A noise-multiplier of {enough:g} allows {count_text(steps, 'step')}."
        except ValueError:  # no noise is enough, or the filter takes no other
            pass
    if left:
        return f"The earlier noise multiplier, {same:.4g}, allows {count_text(left, 'more step')}."
    return "No noise helps: take other records, or let the data owner decide on a larger epsilon."
