"""Trackers: programs outside this one that can be fed with a run's rounds. Each is an optional extra.

This module imports none of their libraries: building a tracker does.
"""

from __future__ import annotations

from collections.abc import Callable

from fedprivacy._support.settings import ConfigError, names_in
from fedprivacy.trackers.libraries import MlflowTracker, TensorBoardTracker, WandbTracker
from fedprivacy.trackers.tracker import Feed, Tracker

TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""Factories of trackers, by the name that the configuration and the extra have for them."""

__all__ = ["TRACKERS", "Feed", "Tracker", "build_trackers", "check_trackers"]


def check_trackers(setting: str) -> None:
    """Refuse a setting `trackers` that names one that there is not.

    Raises:
        ConfigError: lists each.
    """
    problems = [
        f"trackers names '{name}'; choose from {', '.join(TRACKERS)}, separated by commas."
        for name in names_in(setting)
        if name not in TRACKERS
    ]
    if problems:
        raise ConfigError(problems)


def build_trackers(setting: str) -> dict[str, Tracker]:
    """Build the trackers of the setting `trackers`, by name, and load their libraries.

    Args:
        setting: names separated by commas, as the configuration has checked them; empty: none.

    Raises:
        ConfigError: a library is not installed; the error lists all of them.
    """
    trackers: dict[str, Tracker] = {}
    problems = []
    for name in names_in(setting):
        try:
            trackers[name] = TRACKERS[name]()
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError)
            why = f", and this Python has no {error.name}" if missing else f", which cannot be loaded ({error})"
            again = "" if missing else " again"
            problems.append(f"trackers names '{name}'{why}; install 'fedprivacy[{name}]'{again}.")
    if problems:
        raise ConfigError(problems)
    return trackers
