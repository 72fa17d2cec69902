"""Plan of a run that asks questions, with its cost to every client: its one step reads every record."""

from __future__ import annotations

from collections.abc import Mapping

from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.grammar import parse
from fedprivacy.questions.questionnaire import Questionnaire
from fedprivacy.runs.plans.plan import QuestionPlan
from fedprivacy.runs.settings.configuration import ASKING_KEYS, USUAL_SPEND, ConfigError, Value
from fedprivacy.tasks import Task

_ONE_STEP: Mapping[str, Value] = {"rounds": 1, "local-steps": 1, "sampling-rate": 1.0}


def question_plan(given: Mapping[str, Value | None], task: Task | None = None) -> QuestionPlan:
    """The plan of a run that asks.

    Args:
        given: some of `ASKING_KEYS`, by hyphenated key; None and "" mean "left open". Where neither spend nor noise
            multiplier is given, the spend is `USUAL_SPEND`.
        task: whose records; None: the one that the settings name.

    Raises:
        ConfigError: lists everything that is wrong with the settings. That no noise meets the budget is said by the
            plan's `noise`: what was answered before may be read all the same.
    """
    named = {key: value for key, value in given.items() if value not in (None, "")}
    if others := sorted(named.keys() - set(ASKING_KEYS) - {"questions"}):
        raise ConfigError([f"{', '.join(others)} is of training; a run that asks has {', '.join(ASKING_KEYS)}."])
    if not {"spend", "noise-multiplier"} & named.keys():
        named["spend"] = USUAL_SPEND
    return QuestionPlan.of({**named, **_ONE_STEP}, task)


def questions_in(text: str) -> Questionnaire:
    """The questions of the setting `questions`, as people type them.

    Raises:
        ConfigError: they cannot be read, or cannot be asked.
    """
    try:
        return Questionnaire(parse(text))
    except QuestionError as error:
        raise ConfigError([f"questions: {error}"]) from error
