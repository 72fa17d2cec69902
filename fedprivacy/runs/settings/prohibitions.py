"""Prohibitions: settings of a run that do not go with one another, or with the task.

A rule is a function whose parameters name the settings that it is about, of any group, or a `LeftOpen`; `PROHIBITIONS`
lists them all. What a task forbids is found by `task_problems`, `question_problems` and `recipe_problems`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fedprivacy._support.settings import Fields, Value, key_of
from fedprivacy.runs.settings.strategies import SERVER_SETTINGS, STRATEGIES
from fedprivacy.training.algorithms import ALGORITHM_SETTINGS, ALGORITHMS, arguments_of
from fedprivacy.training.optimizers import OPTIMIZERS, build_optimizer, settings_of

if TYPE_CHECKING:
    from fedprivacy.tasks import Recipe
    from fedprivacy.tasks.opened import OpenedTask

USER_LEVEL = ("user_level_noise_multiplier", "user_level_epsilon")
"""Settings any of which switches user-level noise on."""

SWITCHES = {"user_level": USER_LEVEL}
"""Settings any of which switches a mode on, by the name of the mode in rules."""

Rule = Callable[..., Iterable[str]]
"""A function that yields a line for each problem with settings beside one another; its parameters name the settings.

It is called if all settings of parameters without a default are known.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class LeftOpen:
    """Settings that must be left open if another one is given, or unless it is.

    Attributes:
        names: field names of the settings.
        reason: why, and what to do. In the problem it follows the setting's value.
        conflict: the setting, or the switch, that excludes them.
        requirement: instead, the one that they need.
    """

    names: tuple[str, ...]
    reason: str
    conflict: str = ""
    requirement: str = ""


class KnownSettings:
    """The settings of a configuration whose values are known, and what rules find in them.

    A wrong value is not known, nor one that the recipe of a missing task would give. A rule about a setting that is not
    known is not asked: what it says might not be true.

    Args:
        fields: the fields of the configuration.
        settings: the values that are given, by field name.
        wrong: field names of those that are wrong by themselves.
        switches: for each name of a switch, the settings that turn it on; rules may name a switch like a setting.
    """

    def __init__(
        self,
        fields: Fields,
        settings: Mapping[str, Value],
        wrong: Collection[str],
        switches: Mapping[str, Collection[str]],
    ) -> None:
        self._open = {f.name: f.default for f in fields.values() if f.default is not dataclasses.MISSING}
        self._values = {name: value for name, value in {**self._open, **settings}.items() if name not in wrong}
        known = {name: by for name, by in switches.items() if self._values.keys() >= {*by}}
        self._values |= {name: any(map(self._is_given, by)) for name, by in known.items()}

    def problems(self, rules: Iterable[Rule | LeftOpen]) -> list[str]:
        """Return the problems that rules find, in the order of the rules."""
        return [problem for rule in rules for problem in self._problems(rule)]

    def _problems(self, rule: Rule | LeftOpen) -> Iterable[str]:
        if isinstance(rule, LeftOpen):
            return self._not_left_open(rule)
        parameters = inspect.signature(rule).parameters
        if any(each.default is each.empty and name not in self._values for name, each in parameters.items()):
            return ()
        return rule(**{name: self._values[name] for name in parameters if name in self._values})

    def _not_left_open(self, rule: LeftOpen) -> Iterable[str]:
        other = rule.conflict or rule.requirement
        if other in self._values and self._is_given(other) is bool(rule.conflict):
            for name in rule.names:
                if name in self._values and self._is_given(name):
                    yield f"{key_of(name)} is {self._values[name]}, and {rule.reason}"

    def _is_given(self, name: str) -> bool:
        return bool(self._values[name] != self._open.get(name, False))


def _evaluates_without_privacy(local_evaluation: int, privacy: bool) -> Iterator[str]:
    if local_evaluation and not privacy:
        yield (
            f"local-evaluation is {local_evaluation} and privacy is off; leave local-evaluation open: the server's own "
            "evaluation serves to compare the two."
        )


def _evaluates_too_rarely(local_evaluation: int, rounds: int) -> Iterator[str]:
    if local_evaluation > rounds:
        yield (
            f"local-evaluation is {local_evaluation} and rounds is {rounds}, so that no round would evaluate; give at "
            f"most {rounds}, or leave it open."
        )


def _asks_for_no_noise(
    epsilon: float, privacy: bool, noise_multiplier: float | None, spend: float | None
) -> Iterator[str]:
    if privacy and epsilon == math.inf and noise_multiplier is None and spend is None:
        yield "epsilon is inf, which asks for no noise at all; give a noise-multiplier, or a finite epsilon."


def _spends_more_than_the_budget(spend: float | None, epsilon: float) -> Iterator[str]:
    if spend is not None and spend > epsilon:
        yield (f"spend is {spend}, and epsilon, the budget of all runs, is {epsilon}; give a spend of at most epsilon.")


def _taken_by_no_step(optimizer: str, momentum: float, weight_decay: float) -> Iterator[str]:
    try:
        build_optimizer(optimizer, 1.0, momentum=momentum, weight_decay=weight_decay)
    except ValueError as error:
        yield str(error)


def _no_setting_of_the_algorithm(
    algorithm: str, pull: float | None = None, personal_steps: int | None = None
) -> Iterator[str]:
    for name, value in zip(ALGORITHM_SETTINGS, (pull, personal_steps), strict=True):
        if value is not None and name not in arguments_of(algorithm):
            able = " or ".join(other for other in ALGORITHMS if name in arguments_of(other))
            yield (
                f"{key_of(name)} is {value}, which algorithm '{algorithm}' does not take; leave it open, or choose "
                f"{able}."
            )


def _too_few_steps_to_divide(algorithm: str, local_steps: int) -> Iterator[str]:
    if local_steps < (fewest := ALGORITHMS[algorithm].fewest_steps):
        yield (
            f"algorithm is '{algorithm}', which divides a round's local steps, and local-steps is {local_steps}; give "
            f"at least {fewest}."
        )


def _all_steps_personal(algorithm: str, personal_steps: int | None, local_steps: int) -> Iterator[str]:
    if personal_steps is None or "personal_steps" not in arguments_of(algorithm):
        return
    if personal_steps >= max(local_steps, ALGORITHMS[algorithm].fewest_steps):
        yield (
            f"personal-steps is {personal_steps} of local-steps {local_steps}, and the global model needs at least one "
            "of them; give fewer personal-steps, or more local-steps."
        )


def _no_plain_steps(algorithm: str, optimizer: str, momentum: float, weight_decay: float) -> Iterator[str]:
    if ALGORITHMS[algorithm].plain_sgd and (optimizer != "sgd" or momentum or weight_decay):
        yield (
            f"algorithm is '{algorithm}', whose controls are told by plain gradient steps; choose optimizer sgd, "
            "momentum 0 and weight-decay 0."
        )


def _all_rounds_tune(fine_tuning_rounds: int, rounds: int) -> Iterator[str]:
    if fine_tuning_rounds >= rounds:
        yield (
            f"fine-tuning-rounds is {fine_tuning_rounds} of rounds {rounds}, so that no global model is trained; give "
            "fewer, or choose algorithm local."
        )


def _tunes_what_is_personal(fine_tuning_rounds: int, algorithm: str) -> Iterator[str]:
    if fine_tuning_rounds and ALGORITHMS[algorithm].personal:
        yield (
            f"fine-tuning-rounds is {fine_tuning_rounds}, and algorithm '{algorithm}' trains each client's own model "
            "already; leave it open, or choose fedavg or scaffold."
        )


def _kept_from_round_to_round(algorithm: str, fine_tuning_rounds: int, user_level: bool) -> Iterator[str]:
    keeps = ALGORITHMS[algorithm].keeps
    if user_level and (keeps or fine_tuning_rounds):
        keeping = f"algorithm is '{algorithm}'" if keeps else f"fine-tuning-rounds is {fine_tuning_rounds}"
        yield (
            f"{keeping}, so that clients keep something from round to round, and there is user-level noise, which "
            "protects what the server averages alone; leave one of them open."
        )


def _no_setting_of_the_strategy(
    strategy: str,
    server_learning_rate: float | None = None,
    server_momentum: float | None = None,
    proximal_mu: float | None = None,
) -> Iterator[str]:
    known = STRATEGIES.get(strategy)  # None: one of the user's own, which says itself what it takes
    for name, value in zip(SERVER_SETTINGS, (server_learning_rate, server_momentum, proximal_mu), strict=True):
        if known is not None and value is not None and name not in known.defaults:
            able = " or ".join(other for other, able in STRATEGIES.items() if name in able.defaults)
            yield (
                f"{key_of(name)} is {value}, which strategy {strategy} does not take; leave it open, or choose {able}."
            )


def _too_few_clients(
    *,
    strategy: str,
    clients: int,
    fraction_train: float,
    cohort_size: int | None,
    cohort_sampling: str,
    availability: str,
) -> Iterator[str]:
    fewest = STRATEGIES[strategy].fewest_clients if strategy in STRATEGIES else 1
    asked = max(int(clients * fraction_train), 1) if cohort_size is None else cohort_size
    needs = f"strategy is '{strategy}', which needs {fewest} clients in each round, and"
    if asked < fewest:
        said = "clients times fraction-train" if cohort_size is None else "cohort-size"
        yield f"{needs} {said} is {asked}; give more clients, or choose another strategy."
    elif fewest > 1:
        fewer = [f"availability '{availability}'"] if availability else []
        fewer += ["cohort-sampling 'poisson'"] if cohort_sampling == "poisson" else []
        for words in fewer:
            yield f"{needs} {words} may leave fewer; leave that open, or choose another strategy."


def _too_few_steps_to_pull(strategy: str, local_steps: int) -> Iterator[str]:
    if strategy in STRATEGIES and local_steps < (fewest := STRATEGIES[strategy].fewest_local_steps):
        yield (
            f"strategy is '{strategy}', which is fedavg when local-steps is {local_steps}; give local-steps from "
            f"{fewest}, or choose another strategy."
        )


def _compares_what_is_averaged(strategy: str, algorithm: str, user_level: bool, weighting: str) -> Iterator[str]:
    known = STRATEGIES.get(strategy)
    remedy = f"choose one of {', '.join(name for name, each in STRATEGIES.items() if each.averages)}."
    if ALGORITHMS[algorithm].server is not None and (known is None or not known.averages):
        controls = f"algorithm is '{algorithm}', whose controls are told by the average"
        yield f"{controls}, and strategy is '{strategy}'; {remedy}"
    if known is None or known.averages:
        return
    compares = f"strategy is '{strategy}', which compares the clients' updates, and"
    if user_level:
        yield f"{compares} with user-level noise there is nothing but their noisy average; {remedy}"
    elif weighting != "size":
        yield f"weighting is '{weighting}', and strategy '{strategy}' weighs no update; {remedy}"


def _two_sizes(cohort_size: int | None, fraction_train: float) -> Iterator[str]:
    if cohort_size is not None and fraction_train != 1.0:
        yield "cohort-size and fraction-train both say how many clients a round asks; give one of them."


def _more_than_all(cohort_size: int | None, clients: int) -> Iterator[str]:
    if cohort_size is not None and cohort_size > clients:
        yield f"cohort-size is {cohort_size}, and clients is {clients}; give at most as many."


def _waits_for_no_number(cohort_size: int | None, over_selection: float, cohort_sampling: str) -> Iterator[str]:
    if cohort_size is not None and over_selection != 1.0 and cohort_sampling == "poisson":
        yield (
            "over-selection waits for the first cohort-size answers, and cohort-sampling 'poisson' asks for no fixed "
            "number; leave one of them open."
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


PROHIBITIONS: tuple[Rule | LeftOpen, ...] = (
    _evaluates_without_privacy,
    _evaluates_too_rarely,
    _asks_for_no_noise,
    _spends_more_than_the_budget,
    _taken_by_no_step,
    _no_setting_of_the_algorithm,
    _too_few_steps_to_divide,
    _all_steps_personal,
    _no_plain_steps,
    _all_rounds_tune,
    _tunes_what_is_personal,
    _kept_from_round_to_round,
    _no_setting_of_the_strategy,
    _too_few_clients,
    _too_few_steps_to_pull,
    _compares_what_is_averaged,
    LeftOpen(
        ("weighting",), "with user-level noise all clients count alike; leave weighting open.", conflict="user_level"
    ),
    LeftOpen(
        ("cohort_sampling", "over_selection"),
        "there is no cohort-size that it would be about; give one.",
        requirement="cohort_size",
    ),
    _two_sizes,
    _more_than_all,
    _waits_for_no_number,
    LeftOpen(
        ("user_level_clipping_norm", "user_level_quantile"),
        "there is no user-level noise; give a user-level-noise-multiplier or a user-level-epsilon, or leave it open.",
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
        "with user-level noise each client joins with probability fraction-train, whatever others do; leave it open.",
        conflict="user_level",
    ),
    _protects_nobody,
)
"""Rules about settings beside one another, in the order in which their problems are told."""


def task_problems(task: OpenedTask) -> list[str]:
    """Find problems that keep a task from being trained under any settings."""
    from fedprivacy.gradients import UnsupportedModelError, check_frozen, check_model
    from fedprivacy.tasks.opened import TaskError

    problems = []
    try:
        check_model(model := task.model())
        check_frozen(model, task.model())
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


def question_problems(task: OpenedTask, given: Mapping[str, Value], wrong: Collection[str]) -> list[str]:
    """Find problems of the question that a task standardises by, or of a spend for a question that it does not ask."""
    from fedprivacy.questions.arguments import QuestionError
    from fedprivacy.questions.standardise import standardise_question

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
    if question is not None and not task.offers("table"):
        return [f"task {task.name} standardises by a question, which is asked of its table; give it a method table()."]
    return []


def recipe_problems(recipe: Recipe, given: Mapping[str, Value], wrong: Collection[str]) -> list[str]:
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
