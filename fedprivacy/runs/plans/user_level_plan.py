"""User-level central DP as a run plans it: the mechanism that its settings name, and the budget that ends the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedprivacy.accounting.views import UserLevelAccount
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.training.user_level import ClippedClientSum, count_and_sum
from fedprivacy.values.budget import PrivacyBudget
from fedprivacy.values.events import PoissonSampledGaussian


@dataclass(frozen=True, slots=True)
class UserLevelPlan:
    """Mechanism by which a run releases its clients' updates in each round, and the budget of each client."""

    mechanism: ClippedClientSum
    clipping_norm: float  # C of the first round
    budget: PrivacyBudget  # of each client as a whole; infinite: the run only measures

    @property
    def rounds_left(self) -> int:
        """Number of rounds that the budget allows in all."""
        event = self.mechanism.event
        return UserLevelAccount().rounds_left(self.budget, event.sampling_rate, event.noise_multiplier)

    def epsilon(self, rounds: int) -> float:
        """Return each client's epsilon after so many rounds, at the budget's delta."""
        account, event = UserLevelAccount(), self.mechanism.event
        account.record(event.sampling_rate, event.noise_multiplier, rounds)
        return account.epsilon(self.budget.delta).value


def user_level_plan(config: RunConfig) -> UserLevelPlan:
    """The plan of a run with user-level noise.

    Raises:
        ConfigError: says why no noise meets the budget, or that it does not allow one round.
    """
    budget = PrivacyBudget(config.user_level_epsilon or math.inf, config.user_level_delta)
    rate, adaptive = config.fraction_train, config.user_level_clipping == "adaptive"
    noise_multiplier = config.user_level_noise_multiplier or _least_noise(config, budget)
    quantile = 0.5 if config.user_level_quantile is None else config.user_level_quantile
    moving = count_and_sum(noise_multiplier, rate * config.clients, quantile) if adaptive else None
    mechanism = ClippedClientSum(PoissonSampledGaussian(rate, noise_multiplier), config.clients, moving)
    plan = UserLevelPlan(mechanism, config.user_level_clipping_norm or (0.1 if adaptive else 1.0), budget)
    if plan.rounds_left == 0:
        raise ConfigError(
            [
                f"user-level-epsilon is {budget.epsilon} at user-level-delta {budget.delta}, which does not allow one "
                f"round with user-level-noise-multiplier {noise_multiplier}; raise one of them, lower fraction-train, "
                "or leave user-level-noise-multiplier open."
            ]
        )
    return plan


def _least_noise(config: RunConfig, budget: PrivacyBudget) -> float:
    try:
        return UserLevelAccount().noise_multiplier(budget, config.fraction_train, config.rounds)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
