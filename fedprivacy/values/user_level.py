"""User-level privacy loss: what the models of a run reveal about any one client as a whole. It is never added to a
client's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedprivacy.values.wording import budget_text, count_text, delta_text, epsilon_text

FOR_WHOM = "user-level, for whoever sees the global models"
"""Label beside every user-level epsilon that is shown."""


@dataclass(frozen=True, slots=True)
class UserLevelSpent:
    """The user-level account of a run after a round. The unit of privacy is the client; the server is trusted."""

    epsilon: float  # composed over the run's rounds at `delta`, by PLD
    delta: float  # probability with which the bound may fail
    budget_epsilon: float  # at which the run ends; infinite if it only measures
    rounds: int  # rounds charged, including those released again after the run was stopped
    sampling_rate: float  # q, with which each client joins a round
    noise_multiplier: float  # z, deviation of the noise on the sum of clipped updates, in clipping norms
    clipping_norm: float  # C of the next round

    @property
    def text(self) -> str:
        """The figure for people, with the observer for whom it holds."""
        limit = f" of {budget_text(self.budget_epsilon)}" if math.isfinite(self.budget_epsilon) else ""
        spent = epsilon_text(self.epsilon, self.budget_epsilon)
        rounds = count_text(self.rounds, "round")
        return f"epsilon {spent}{limit} at delta {delta_text(self.delta)} after {rounds} ({FOR_WHOM})"
