"""A run's participation, from its settings: what a simulation makes up, and what real clients know, too."""

from __future__ import annotations

import math
from collections.abc import Collection

from fedprivacy._support.settings import key_of
from fedprivacy.participation import ALWAYS, COHORTS, Draws, Participation, availability_of, speeds_of
from fedprivacy.participation.timing import INSTANT, Equal
from fedprivacy.runs.settings.configuration import FIELDS, ConfigError, RunConfig

_CLOCKED = ("over_selection", "deadline", "speeds", "availability")
"""Settings that say how time passes. With one of them a simulation has a clock."""

_SIMULATED = ("drop_out", *_CLOCKED)
"""Settings that make up what real clients do by themselves."""


def participation_of(config: RunConfig, run_id: str) -> Participation:
    """Return the participation of clients in a run's rounds. Without a seed, the run's id seeds the draws.

    Raises:
        ConfigError: a trace that is named cannot be read.
    """
    draws = Draws.of(f"run {run_id}" if config.seed is None else f"seed {config.seed}")
    clocked = any(_is_given(config, name) for name in _CLOCKED)
    size = config.cohort_size
    asked = None if size is None else math.ceil(round(size * config.over_selection, 6))
    return Participation(
        draws=draws,
        cohort=None if asked is None else COHORTS[config.cohort_sampling](asked, config.clients),
        wanted=size if config.over_selection > 1.0 else None,
        drop_out=config.drop_out,
        deadline=math.inf if config.deadline is None else config.deadline,
        speeds=speeds_of(config.speeds, draws) if config.speeds else Equal() if clocked else INSTANT,
        availability=availability_of(config.availability, draws) if config.availability else ALWAYS,
    )


def check_participation(
    participation: Participation, config: RunConfig, client_ids: Collection[str], *, deployed: bool
) -> None:
    """Refuse a run's participation that the clients that have come cannot have.

    Raises:
        ConfigError: they are real ones, whose speeds and drop-outs nobody makes up; or a trace does not know them, or
            none of them would ever be in time.
    """
    made_up = [key_of(name) for name in _SIMULATED if _is_given(config, name)]
    if deployed and made_up:
        raise ConfigError(
            [f"{name} makes up what clients do, and these are deployed ones; leave {name} open." for name in made_up]
        )
    participation.check(client_ids, config.local_steps)


def _is_given(config: RunConfig, name: str) -> bool:
    return bool(getattr(config, name) != FIELDS[key_of(name)].default)
