"""Combinations: settings that are each what they may be, and do not go together or name what there is not.

Every function here takes settings by field name, those that are not left open, and returns a line for each problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from fedprivacy._support.settings import Value, key_of, names_in
from fedprivacy.runs.device import is_device
from fedprivacy.runs.strategies import SERVER_SETTINGS, STRATEGIES
from fedprivacy.trackers import TRACKERS
from fedprivacy.training.optimizers import OPTIMIZERS, build_optimizer, settings_of

if TYPE_CHECKING:
    from fedprivacy.tasks import Recipe, Task

Settings = Mapping[str, Value]


def with_task(task: Task) -> list[str]:
    """What about a task itself keeps it from being trained."""
    from fedprivacy.gradients import UnsupportedModelError, check_frozen, check_model

    problems = []
    try:
        check_model(model := task.model())
        check_frozen(model, task.model())
    except UnsupportedModelError as error:
        problems.append(f"task {task.name}: {error}")
    if not task.shard_sizes_public and not task.nominal_shard_size:
        problems.append(
            f"task {task.name}: shard sizes are private, so the divisor of the noisy sum needs a public guess; "
            "set nominal_shard_size."
        )
    return problems


def with_recipe(recipe: Recipe, given: Settings) -> list[str]:
    """What no recipe knows for another optimiser than its own: with a wrong step size a budget is spent on nothing."""
    optimizer = str(given.get("optimizer", recipe.optimizer))
    if optimizer == recipe.optimizer or optimizer not in OPTIMIZERS:
        return []
    return [
        f"optimizer is '{optimizer}' and {key_of(name)} is open, but the task's recipe is for {recipe.optimizer}; "
        f"give a {key_of(name)}."
        for name, required in settings_of(OPTIMIZERS[optimizer]).items()
        if required and name not in given
    ]


def with_batch_size(given: Settings) -> list[str]:
    """What a batch size does not go with."""
    if "batch_size" not in given:
        return []
    problems = []
    if "sampling_rate" in given:
        problems.append("batch-size and sampling-rate both say how many records join a step; give one of them.")
    if "noise_multiplier" not in given and given.get("privacy", True):
        problems.append(
            f"batch-size is {given['batch_size']} and noise-multiplier is open, but clients with different sampling "
            "rates need different noise; give a noise-multiplier ('fedprivacy sigma' finds one for the largest rate)."
        )
    return problems


def with_one_another(settings: Settings) -> list[str]:
    """The rest, of a configuration that is complete, or as complete as it gets."""
    problems = _strategy_problems(settings)
    if settings.get("optimizer") in OPTIMIZERS:
        kept = {name: float(settings.get(name, 0.0)) for name in ("momentum", "weight_decay")}
        problems += _refusal(partial(build_optimizer, str(settings["optimizer"]), 1.0, **kept))
    if settings.get("epsilon") == math.inf and "noise_multiplier" not in settings and settings["privacy"]:
        problems.append("epsilon is inf, which asks for no noise at all; give a noise-multiplier, or a finite epsilon.")
    if not is_device(str(settings["device"])):
        problems.append(f"device is '{settings['device']}'; choose auto, cpu, cuda or cuda:N.")
    if url := str(settings.get("ledger", "")):
        from fedprivacy.ledger import database_file

        problems += _refusal(partial(database_file, url))
    problems += [
        f"trackers names '{name}'; choose from {', '.join(TRACKERS)}, separated by commas."
        for name in names_in(str(settings.get("trackers", "")))
        if name not in TRACKERS
    ]
    return problems


def _strategy_problems(settings: Settings) -> list[str]:
    """What a strategy that has a name here would ignore, or cannot do."""
    name = settings["strategy"]
    if (known := STRATEGIES.get(str(name))) is None:
        return []
    problems = [
        f"{key_of(setting)} is {settings[setting]}, which strategy {name} does not take; leave it open, or choose "
        f"{' or '.join(other for other, able in STRATEGIES.items() if setting in able.defaults)}."
        for setting in SERVER_SETTINGS
        if setting in settings and setting not in known.defaults
    ]
    asked = max(int(float(settings["clients"]) * float(settings["fraction_train"])), 1)
    if asked < known.fewest_clients:
        problems.append(
            f"strategy is '{name}', which needs {known.fewest_clients} clients in each round, and clients times "
            f"fraction-train is {asked}; give more clients, or choose another strategy."
        )
    if float(settings.get("local_steps", known.fewest_local_steps)) < known.fewest_local_steps:
        problems.append(
            f"strategy is '{name}', which is fedavg when local-steps is {settings['local_steps']}; give local-steps "
            f"from {known.fewest_local_steps}, or choose another strategy."
        )
    return problems


def _refusal(use: Callable[[], object]) -> list[str]:
    """What is wrong with settings in the words of what uses them."""
    try:
        use()
    except ValueError as error:
        return [str(error)]
    return []
