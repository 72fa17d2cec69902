"""Accounting: the epsilon that an app shows after some rounds, against what the steps cost that it took in them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support import sources
from fedprivacy.accounting import pld
from fedprivacy.audit.apps.adapter import AppError
from fedprivacy.audit.apps.audited_app import AuditedApp
from fedprivacy.audit.gates.costs import too_low
from fedprivacy.audit.gates.gate import Judged, gate
from fedprivacy.values.events import PoissonSampledGaussian
from fedprivacy.values.wording import count_text

_NEAR = 0.05
"""Relative difference within which an epsilon is taken for that of another number of steps: accountants differ."""

_HALVINGS = 12
"""Number of halvings that find, to three digits, the sampling rate that costs what is shown."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Epsilon that an app showed after some rounds, beside the steps that it took.

    Attributes:
        rounds: number of rounds in which it trained.
        steps: number of steps that it took in them.
        epsilon: the value that it showed.
    """

    rounds: int
    steps: int
    epsilon: float


def shown(audited: AuditedApp, rounds: int) -> Shown:
    """Rehearse some rounds, and ask what they cost.

    Raises:
        AppError: the app does not say, or fails to train.
    """
    app = audited.make()
    trainings = audited.rehearse(app, 400, rounds)
    try:
        epsilon = float(app.epsilon(rounds))
    except Exception as error:
        raise AppError(f"app {audited.name}: epsilon({rounds}) fails: {sources.told(error)}.") from error
    return Shown(rounds, sum(len(training.steps) for training in trainings), epsilon)


@gate(
    "accounting",
    proves="The epsilon that is shown is at least what the executed steps cost, over all rounds.",
    assumes="Noise and samples are as claimed (gates noise, sampling); other rounds are as the rehearsed ones.",
)
def check(audited: AuditedApp) -> Judged:
    """Check whether the epsilon that is shown is not less than what was spent."""
    many = audited.app.rounds
    found = [shown(audited, rounds) for rounds in dict.fromkeys((1, many))]
    spent = [cost(audited, one.steps) for one in found]
    reasons = []
    if any(
        not math.isfinite(one.epsilon) or too_low(one.epsilon, real) for one, real in zip(found, spent, strict=True)
    ):
        reasons = [*_why(audited, found, spent)]
    return Judged(spent[-1], reasons)


def cost(audited: AuditedApp, steps: int) -> float:
    """The epsilon of so many steps, as claimed of each."""
    return pld.epsilon({audited.event: steps}, audited.app.delta) if steps else 0.0


def _why(audited: AuditedApp, found: list[Shown], spent: list[float]) -> Iterator[str]:
    """Explain an epsilon that is too low."""
    first, last = found[0], found[-1]
    said = (
        f"after {last.rounds} rounds an epsilon of {last.epsilon:.3g} is shown, and the {last.steps} steps that were "
        f"taken cost {spent[-1]:.3g}"
    )
    if not math.isfinite(last.epsilon) or not math.isfinite(first.epsilon):
        yield f"The epsilon that is shown is no bound ({first.epsilon}, {last.epsilon})."
    elif not too_low(first.epsilon, spent[0]):
        if abs(last.epsilon - first.epsilon) <= _NEAR * first.epsilon:
            yield (
                "Each round begins with a new accountant, which has forgotten all rounds before: what is shown is "
                f"the cost of one round; {said}."
            )
        else:
            yield f"Rounds are not added up in full: {said}."
    else:
        yield (
            f"Already after one round an epsilon of {first.epsilon:.3g} is shown, and the {first.steps} steps that "
            f"were taken cost {spent[0]:.3g}: {', or '.join(_as_if(audited, first))}."
        )


def _as_if(audited: AuditedApp, one: Shown) -> Iterator[str]:
    """Yield other trainings that cost the epsilon shown after one round, which is less than that round costs."""
    if one.epsilon >= cost(audited, 1):
        yield (
            f"it is the cost of {count_text(_as_if_steps(audited, one), 'step')} (as where steps are counted for the "
            "whole federation, or not those that the client takes)"
        )
    yield (
        f"it is the cost of a sampling rate of {100 * _as_if_rate(audited, one):.3g} % instead of "
        f"{100 * audited.event.sampling_rate:.3g} % (as where it is computed from the records of the whole federation, "
        "or counts on clients that are drawn anew for each step; if records do join that seldom, as with Opacus, "
        "which takes 1 / len(loader), claim that rate)"
    )
    yield "it is of an accountant that estimates an epsilon and does not bound it, such as Opacus' 'gdp'"


def _as_if_steps(audited: AuditedApp, one: Shown) -> int:
    """Return the number of steps that cost what is shown."""
    least, most = 0, one.steps
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if cost(audited, middle) <= one.epsilon else (least, middle)
    return least


def _as_if_rate(audited: AuditedApp, one: Shown) -> float:
    """Return the sampling rate at which the steps cost what is shown."""
    event, delta = audited.event, audited.app.delta
    least, most = 1e-3 * event.sampling_rate, event.sampling_rate
    for _ in range(_HALVINGS):
        middle = math.sqrt(least * most)
        as_if = PoissonSampledGaussian(middle, event.noise_multiplier)
        least, most = (middle, most) if pld.epsilon({as_if: one.steps}, delta) <= one.epsilon else (least, middle)
    return least
