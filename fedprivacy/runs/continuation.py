"""A run that was stopped goes on: with its own settings, which its folder knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedprivacy.runs.configuration import ConfigError, Value
from fedprivacy.runs.folder import read_config
from fedprivacy.runs.plan import RunPlan
from fedprivacy.tasks import Task, TaskError
from fedprivacy.tasks.loader import agreed


def plan_of(given: Mapping[str, Value | None], task: Task | None = None) -> RunPlan:
    """The plan of a new run, or, where `given` says `resume`, of the one that goes on.

    Args:
        given: settings by hyphenated key; None and "" mean "left open".
        task: the task, which the settings then do not name; None: the one that they name.

    Raises:
        ConfigError: lists what is wrong with the settings of a new run; or each that is not the stopped run's own.
        RunFolderError: the folder to go on in holds no run.
    """
    folder = given.get("resume")
    if not folder:
        return RunPlan.of(given, task)
    recorded = read_config(Path(str(folder)))
    recorded.check_same({key: value for key, value in given.items() if key != "resume"})
    try:
        return RunPlan(replace(recorded, resume=str(folder), out=str(folder)), agreed(recorded.task, task))
    except TaskError as error:
        raise ConfigError([str(error)]) from error
