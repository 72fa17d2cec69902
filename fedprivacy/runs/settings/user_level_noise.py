"""User-level central DP: noise of the server's own, so that the models protect each client as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import LEAST, KnownSettings, LeftOpen, SettingsGroup, setting
from fedprivacy.values.events import CLIPPING_NORMS

USER_LEVEL_CLIPPINGS = ("fixed", "adaptive")
"""Ways to choose the bound on a client's whole update."""

USER_LEVEL = ("user_level_noise_multiplier", "user_level_epsilon")
"""Settings any of which switches the noise on."""


@dataclass(frozen=True, kw_only=True)
class UserLevelSettings(SettingsGroup, question="How private is a client as a whole?"):
    """Noise, budget and clipping of whole clients' updates."""

    user_level_noise_multiplier: float | None = setting(
        "Noise that the server adds to the sum of the clients' clipped updates, in clipping norms, so that the global "
        "models protect each client as a whole (user-level central DP). Left open: the least that user-level-epsilon "
        "allows; with neither of them, there is none.",
        None,
        bounds=(0.05, 1e4),
    )
    user_level_epsilon: float | None = setting(
        "Each client's user-level budget, for this run's global models; the run ends when the next round does not fit. "
        "It is never added to epsilon, which is for a record. Left open: measure only.",
        None,
        bounds=(LEAST, 1e6),
    )
    user_level_delta: float = setting("Delta of user-level-epsilon.", 1e-5, bounds=(1e-300, 0.999))
    user_level_clipping_norm: float | None = setting(
        "Bound on the norm of one client's whole update. Left open: 1; where user-level-clipping is adaptive, which "
        "starts there, 0.1.",
        None,
        bounds=CLIPPING_NORMS,
    )
    user_level_clipping: str = setting(
        f"How that bound is chosen: {', '.join(USER_LEVEL_CLIPPINGS)}. adaptive: it follows a quantile of the updates' "
        "norms.",
        USER_LEVEL_CLIPPINGS[0],
        choices=USER_LEVEL_CLIPPINGS,
    )
    user_level_quantile: float | None = setting(
        "Share of the updates that adaptive user-level clipping leaves whole. Left open: 0.5.", None, bounds=(0.0, 1.0)
    )

    @property
    def user_level(self) -> bool:
        """Return whether the server clips and noises the clients' updates, so that the models protect each client."""
        return self.user_level_noise_multiplier is not None or self.user_level_epsilon is not None

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find settings that do not go with user-level noise, or are given without it."""
        return known.problems(
            LeftOpen(
                ("user_level_clipping_norm", "user_level_quantile"),
                "there is no user-level noise; give a user-level-noise-multiplier or a user-level-epsilon, or leave it "
                "open.",
                requirement="user_level",
            ),
            LeftOpen(
                ("local_evaluation",),
                "what it tells is in no user-level account; leave it open: the server's own evaluation sees the global "
                "model alone.",
                conflict="user_level",
            ),
            _no_quantile_to_follow,
            LeftOpen(
                ("cohort_size", "over_selection", "deadline", "availability"),
                "with user-level noise each client joins with probability fraction-train, whatever others do; leave it "
                "open.",
                conflict="user_level",
            ),
            _protects_nobody,
        )


def _no_quantile_to_follow(
    user_level: bool, user_level_quantile: float | None, user_level_clipping: str
) -> Iterator[str]:
    if user_level and user_level_quantile is not None and user_level_clipping != "adaptive":
        yield (
            f"user-level-quantile is {user_level_quantile}, and user-level-clipping is {user_level_clipping}; choose "
            "adaptive, or leave the quantile open."
        )


def _protects_nobody(user_level: bool, user_level_delta: float, clients: int) -> Iterator[str]:
    if user_level and user_level_delta * clients >= 1.0:
        yield (
            f"user-level-delta is {user_level_delta} and clients is {clients}: at a delta of 1 / clients, a run that "
            f"publishes all of one client would do; give a user-level-delta well below {1.0 / clients:g}."
        )
