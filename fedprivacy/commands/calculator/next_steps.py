"""What a user may type next, with the numbers of the answer that is on the screen."""

from __future__ import annotations

import json
import math
import shlex
from decimal import ROUND_CEILING, Decimal

from fedprivacy.commands.calculator.answers import Noise, Spent
from fedprivacy.values.events import NeighbouringRelation, PoissonSampledGaussian
from fedprivacy.values.wording import budget_text, delta_text

_NOISE_DIGITS = 5


def noise_text(noise_multiplier: float) -> str:
    """A noise multiplier for people: never rounded down.

    >>> noise_text(0.9612341)
    '0.96124'
    """
    exact = Decimal(repr(noise_multiplier))
    last_digit = exact.adjusted() + 1 - _NOISE_DIGITS
    return f"{exact.quantize(Decimal(1).scaleb(last_digit), ROUND_CEILING):f}"


def after_spent(spent: Spent, program: str) -> str:
    """What to do after `fedprivacy epsilon`, and the command for it."""
    gaussian = [(t.event, t.steps) for t in spent.trainings if isinstance(t.event, PoissonSampledGaussian)]
    if not gaussian:
        options = ["--history", spent.history, "--delta", delta_text(spent.delta), "--accountant", "all"]
        return f"compare accountants:\n  {shlex.join([program, 'epsilon', *options])}"
    event, steps = gaussian[-1]
    epsilon = spent.costs[0].epsilon
    epsilon = epsilon if epsilon and math.isfinite(epsilon) else 1.0
    budget = _one_digit(2 * epsilon if spent.history else epsilon / 2)
    options = ["--epsilon", budget, "--delta", delta_text(spent.delta)]
    options += ["--sampling-rate", budget_text(event.sampling_rate), "--steps", str(steps), *_relation(event.relation)]
    options += ["--past", spent.history] if spent.history else []
    purpose = f"for a further training, up to epsilon {budget} together" if spent.history else f"for epsilon {budget}"
    return f"find the noise {purpose}:\n  {shlex.join([program, 'sigma', *options])}"


def after_noise(noise: Noise, program: str) -> str:
    """What to do after `fedprivacy sigma`, and the command or the entry for it."""
    event, sigma = noise.event, noise_text(noise.event.noise_multiplier)
    if noise.past:
        settings = {"sampling_rate": event.sampling_rate, "noise_multiplier": float(sigma), "steps": noise.steps}
        return f"train; then add to {noise.past}:\n  {json.dumps(settings | {'relation': event.relation.value})}"
    options = ["--sampling-rate", budget_text(event.sampling_rate), "--noise-multiplier", sigma]
    options += ["--steps", str(noise.steps), "--delta", delta_text(noise.budget.delta), *_relation(event.relation)]
    return f"draw epsilon by step:\n  {shlex.join([program, 'epsilon', *options, '--plot', 'epsilon.svg'])}"


def _relation(relation: NeighbouringRelation) -> list[str]:
    return [] if relation is NeighbouringRelation.ADD_OR_REMOVE_ONE else ["--relation", relation.value]


def _one_digit(epsilon: float) -> str:
    """A round number near an epsilon."""
    return budget_text(float(f"{epsilon:.0e}"))
