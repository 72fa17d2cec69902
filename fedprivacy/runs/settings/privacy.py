"""Record-level privacy: each client's budget, and the mechanism of a local step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import LEAST, KnownSettings, SettingsGroup, setting
from fedprivacy.runs.settings import client_terms
from fedprivacy.runs.settings.client_terms import EPSILONS, NOISE_MULTIPLIERS, SAMPLING_RATES, TABLE_FORMS
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import CLIPPING_NORMS


@dataclass(frozen=True, kw_only=True)
class PrivacySettings(
    SettingsGroup,
    question="How private?",
    basic=("epsilon", "delta", "noise-multiplier", "privacy", "clipping-norm", "sampling-rate", "batch-size"),
):
    """Budget, noise, clipping and sampling: of all clients, and of some clients' own."""

    epsilon: float = setting(
        "Each client's privacy budget over all runs on its shard; inf: measure only.", bounds=EPSILONS
    )
    delta: float = setting("Delta of that budget.", bounds=(1e-300, 0.999))
    spend: float | None = setting(
        "How much of that budget's epsilon this run may take of each client; left open: all that is left.",
        None,
        bounds=(LEAST, 1e6),
    )
    question_spend: float | None = setting(
        "How much of that budget's epsilon the task's own question may take (Task.standardise), which is asked once, "
        "before the first round; left open: a tenth of the budget.",
        None,
        bounds=(LEAST, 1e6),
    )
    privacy: bool = setting(
        "Off: the baseline, the same run without clipping and noise, which protects nobody. Simulations only.", True
    )
    noise_multiplier: float | None = setting(
        "Sigma; left open: the least that the budget allows. Given without epsilon, the run has no budget.",
        None,
        bounds=NOISE_MULTIPLIERS,
    )
    clipping_norm: float = setting("C, bound on the norm of one record's gradient.", bounds=CLIPPING_NORMS)
    clipping: str = setting(
        f"How a record's gradient is bounded: {', '.join(CLIPPINGS)}. adaptive: C follows the median norm, from its "
        "setting on.",
        "flat",
        choices=CLIPPINGS,
    )
    sampling_rate: float = setting("q, probability that a record joins a local step.", bounds=SAMPLING_RATES)
    batch_size: float | None = setting(
        "Expected batch size, instead of sampling-rate: a client's q is this over its public shard size, at most 1. "
        "With noise-multiplier left open, each client has the least noise for its own q.",
        None,
        bounds=(1e-6, 1e9),
    )
    client_terms: str = setting(
        f"Settings of single clients: {TABLE_FORMS}; in Python, or a mapping. A setting that is left open is the "
        "run's; noise that is open in both is the least that the client's own budget and rate allow.",
        "",
        check=client_terms.check_form,
    )

    @property
    def budget(self) -> PrivacyBudget:
        """Each client's privacy budget."""
        return PrivacyBudget(self.epsilon, self.delta)

    @property
    def most_spent(self) -> float:
        """Maximum epsilon that this run may take of the budget; infinite: all that is left."""
        return math.inf if self.spend is None else self.spend

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find budgets that ask for no noise, or are smaller than what the run may take of them."""
        return known.problems(_asks_for_no_noise, _spends_more_than_the_budget)


def _asks_for_no_noise(
    epsilon: float, privacy: bool, noise_multiplier: float | None, spend: float | None
) -> Iterator[str]:
    if privacy and epsilon == math.inf and noise_multiplier is None and spend is None:
        yield "epsilon is inf, which asks for no noise at all; give a noise-multiplier, or a finite epsilon."


def _spends_more_than_the_budget(spend: float | None, epsilon: float) -> Iterator[str]:
    if spend is not None and spend > epsilon:
        yield (f"spend is {spend}, and epsilon, the budget of all runs, is {epsilon}; give a spend of at most epsilon.")
