"""Problems that keep a run from training a task, alone or together with the settings that are given.

Every function takes settings by field name, those that are not left open, and returns a line for each problem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from fedprivacy._support.settings import Value, key_of
from fedprivacy.runs.settings.user_level_noise import USER_LEVEL
from fedprivacy.training.optimizers import OPTIMIZERS, settings_of

if TYPE_CHECKING:
    from fedprivacy.tasks import Recipe, Task

Settings = Mapping[str, Value]


def of_task(task: Task) -> list[str]:
    """Find problems that keep a task from being trained under any settings."""
    from fedprivacy.gradients import UnsupportedModelError, check_frozen, check_model
    from fedprivacy.tasks.loader import TaskError, model_of

    problems = []
    try:
        check_model(model := model_of(task))
        check_frozen(model, model_of(task))
    except TaskError as error:
        problems.append(str(error))
    except UnsupportedModelError as error:
        problems.append(f"task {task.name}: {error}")
    if not task.shard_sizes_public and not task.nominal_shard_size:
        problems.append(
            f"task {task.name}: shard sizes are private, so the divisor of the noisy sum needs a public guess; "
            "set nominal_shard_size."
        )
    return problems


def of_question(task: Task, given: Settings, wrong: Collection[str]) -> list[str]:
    """Find problems of the question that a task standardises by, or of a spend for a question that it does not ask."""
    from fedprivacy.questions.arguments import QuestionError
    from fedprivacy.questions.standardise import standardise_question
    from fedprivacy.tasks.loader import offers_table

    try:
        question = standardise_question(task)
    except QuestionError as error:
        return [str(error)]
    if question is None and "question_spend" in given and "question_spend" not in wrong:
        return ["question-spend is given, and the task asks no question (Task.standardise); leave it open."]
    if question is not None and given.get("privacy", True) and given.keys() & {*USER_LEVEL}:
        return [
            f"task {task.name} standardises by a question, whose answer goes to every client and is in no user-level "
            "account; leave user-level-noise-multiplier and user-level-epsilon open, or give the task no question."
        ]
    if question is not None and not offers_table(task):
        return [f"task {task.name} standardises by a question, which is asked of its table; give it a method table()."]
    return []


def of_recipe(recipe: Recipe, given: Settings, wrong: Collection[str]) -> list[str]:
    """Find settings that an optimiser other than the recipe's requires, and that are left open.

    The recipe does not know them, and a wrong step size would spend the budget on a useless model.
    """
    optimizer = str(given.get("optimizer", recipe.optimizer))
    if optimizer == recipe.optimizer or optimizer not in OPTIMIZERS:
        return []
    return [
        f"optimizer is '{optimizer}' and {key_of(name)} is open, but the task's recipe is for {recipe.optimizer}; "
        f"give a {key_of(name)}."
        for name, required in settings_of(OPTIMIZERS[optimizer]).items()
        if required and name not in given and name not in wrong
    ]
