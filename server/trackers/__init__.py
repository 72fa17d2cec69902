"""Trackers: programs outside this one that can be fed with a run's rounds. Each is an optional extra."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedprivacy.config import ConfigError
from server.trackers.feeding import Feed
from server.trackers.mlflow import MlflowTracker
from server.trackers.protocol import Tracker
from server.trackers.tensorboard import TensorBoardTracker
from server.trackers.wandb import WandbTracker

TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""What makes a tracker, by name; the name is that of the extra, too."""

NAMES = tuple(TRACKERS)

__all__ = ["NAMES", "TRACKERS", "Feed", "Tracker", "build", "build_trackers"]


def build_trackers(setting: str) -> dict[str, Tracker]:
    """The trackers of the setting `trackers`, by name: names separated by commas; empty: none.

    Raises:
        ConfigError: lists each name that is unknown, or whose library is not installed.
    """
    names = list(dict.fromkeys(name.strip() for name in setting.split(",") if name.strip()))
    return dict(zip(names, build(names), strict=True))


def build(names: Iterable[str]) -> list[Tracker]:
    """The named trackers, in this order, with their libraries loaded.

    Raises:
        ConfigError: lists each name that is unknown, or whose library is not installed.
    """
    trackers: list[Tracker] = []
    problems: list[str] = []
    for name in names:
        if name not in TRACKERS:
            problems.append(f"trackers is '{name}'; choose from {', '.join(NAMES)}.")
            continue
        try:
            trackers.append(TRACKERS[name]())
        except ModuleNotFoundError as error:
            problems.append(f"trackers is '{name}', and this Python has no {error.name}; install 'fedprivacy[{name}]'.")
        except ImportError as error:
            problems.append(
                f"trackers is '{name}', which cannot be loaded ({error}); install 'fedprivacy[{name}]' again."
            )
    if problems:
        raise ConfigError(problems)
    return trackers
