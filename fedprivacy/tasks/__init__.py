"""Tasks: model, data, loss and metric; the protocol and the built-in ones."""

from typing import TYPE_CHECKING

from fedprivacy._support.imports import names_of, when_asked

if TYPE_CHECKING:
    from fedprivacy.tasks.augmentation import Augmentation, mirrored, shifted
    from fedprivacy.tasks.cancer import Cancer
    from fedprivacy.tasks.digits import Digits
    from fedprivacy.tasks.loader import load_task
    from fedprivacy.tasks.opened import TaskError
    from fedprivacy.tasks.task import Recipe, Score, Shard, ShardSource, Task, relation_of
    from fedprivacy.tasks.tuning import OnPublic
else:  # the names of the built-in tasks are asked for by every `--help`, and need no torch
    __getattr__ = when_asked(__name__, "loader", "opened", "task", "augmentation", "cancer", "digits", "tuning")
    __dir__ = names_of(__name__)

__all__ = [
    "Augmentation",
    "Cancer",
    "Digits",
    "OnPublic",
    "Recipe",
    "Score",
    "Shard",
    "ShardSource",
    "Task",
    "TaskError",
    "load_task",
    "mirrored",
    "relation_of",
    "shifted",
]
