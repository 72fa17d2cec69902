"""Combinations: settings that are each what they may be, and do not go together or name what there is not.

Every function here takes settings by field name, those that are not left open, and returns a line for each problem.
Where one of a combination's settings is wrong by itself, nothing is said of the others: it would not be true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from fedprivacy._support.settings import Value, key_of, names_in
from fedprivacy.participation import availability, speeds
from fedprivacy.runs import client_terms
from fedprivacy.runs.device import is_device
from fedprivacy.runs.settings.algorithms import GOES_WITH, OF_ALGORITHMS, algorithm_problems
from fedprivacy.runs.settings.strategies import SERVER_SETTINGS, STRATEGIES
from fedprivacy.trackers import TRACKERS
from fedprivacy.training.optimizers import OPTIMIZERS, build_optimizer, settings_of

if TYPE_CHECKING:
    from fedprivacy.tasks import Recipe, Task

Settings = Mapping[str, Value]

_USER_LEVEL_SWITCHES = ("user_level_noise_multiplier", "user_level_epsilon")
"""Whichever of them is given switches user-level noise on."""

_SELECTING: dict[str, Value] = {"cohort_size": "", "over_selection": 1.0, "deadline": "", "availability": ""}
"""Settings by which other clients decide whether a client's update counts, each as it is where it is left open."""

_TOGETHER: dict[str, Value] = {
    "fraction_train": 1.0,
    "cohort_size": "",
    "cohort_sampling": "fixed",
    "over_selection": 1.0,
    "deadline": "",
}
"""Settings of rounds that end together, each as it is where it is left open."""

_ASYNCHRONOUS = ("concurrency", "buffer_size")

_OF_USER_LEVEL = ("user_level_clipping_norm", "user_level_quantile")
"""Settings that are only given where there is user-level noise."""


def with_task(task: Task) -> list[str]:
    """What about a task itself keeps it from being trained."""
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


def with_question(task: Task, given: Settings, wrong: Collection[str]) -> list[str]:
    """What is wrong with the question that a task standardises by, or with a spend for none."""
    from fedprivacy.questions.errors import QuestionError
    from fedprivacy.questions.standardise import standardise_question
    from fedprivacy.tasks.loader import offers_table

    try:
        question = standardise_question(task)
    except QuestionError as error:
        return [str(error)]
    if question is None and "question_spend" in given and "question_spend" not in wrong:
        return ["question-spend is given, and the task asks no question (Task.standardise); leave it open."]
    if question is not None and given.keys() & {*_ASYNCHRONOUS}:
        return [
            f"task {task.name} standardises by a question, which asynchronous rounds do not know; leave buffer-size "
            "and concurrency open, or give the task no question."
        ]
    if question is not None and given.get("privacy", True) and given.keys() & _USER_LEVEL_SWITCHES:
        return [
            f"task {task.name} standardises by a question, whose answer goes to every client and is in no user-level "
            "account; leave user-level-noise-multiplier and user-level-epsilon open, or give the task no question."
        ]
    if question is not None and not offers_table(task):
        return [f"task {task.name} standardises by a question, which is asked of its table; give it a method table()."]
    return []


def with_recipe(recipe: Recipe, given: Settings, wrong: Collection[str]) -> list[str]:
    """What no recipe knows for another optimiser than its own: with a wrong step size a budget is spent on nothing."""
    optimizer = str(given.get("optimizer", recipe.optimizer))
    if optimizer == recipe.optimizer or optimizer not in OPTIMIZERS:
        return []
    return [
        f"optimizer is '{optimizer}' and {key_of(name)} is open, but the task's recipe is for {recipe.optimizer}; "
        f"give a {key_of(name)}."
        for name, required in settings_of(OPTIMIZERS[optimizer]).items()
        if required and name not in given and name not in wrong
    ]


def with_batch_size(given: Settings) -> list[str]:
    """What a batch size does not go with."""
    if not {"batch_size", "sampling_rate"} <= given.keys():
        return []
    return ["batch-size and sampling-rate both say how many records join a step; give one of them."]


def with_one_another(settings: Settings, wrong: Collection[str]) -> list[str]:
    """The rest, of a configuration that is complete, or as complete as it gets."""
    return [problem for names, found in _CHECKS if not {*names} & {*wrong} for problem in found(settings)]


def _optimizer_problems(settings: Settings) -> list[str]:
    if "optimizer" not in settings:
        return []
    kept = {name: float(settings.get(name, 0.0)) for name in ("momentum", "weight_decay")}
    return _refusal(partial(build_optimizer, str(settings["optimizer"]), 1.0, **kept))


def _noise_problems(settings: Settings) -> list[str]:
    if (
        settings.get("epsilon") != math.inf
        or not settings["privacy"]
        or {"noise_multiplier", "spend"} & settings.keys()
    ):
        return []
    return ["epsilon is inf, which asks for no noise at all; give a noise-multiplier, or a finite epsilon."]


def _evaluation_problems(settings: Settings) -> list[str]:
    if settings["privacy"] or not settings["local_evaluation"]:
        return []
    return [
        f"local-evaluation is {settings['local_evaluation']} and privacy is off; leave local-evaluation open: the "
        "server's own evaluation serves to compare the two."
    ]


def _too_rare_evaluations(settings: Settings) -> list[str]:
    every, rounds = int(settings["local_evaluation"]), int(settings.get("rounds", settings["local_evaluation"]))
    if every <= rounds:
        return []
    return [
        f"local-evaluation is {every} and rounds is {rounds}, so that no round would evaluate; give at most {rounds}, "
        "or leave it open."
    ]


def _spend_problems(settings: Settings) -> list[str]:
    if float(settings.get("spend", 0.0)) <= float(settings.get("epsilon", math.inf)):
        return []
    return [
        f"spend is {settings['spend']}, and epsilon, the budget of all runs, is {settings['epsilon']}; give a spend of "
        "at most epsilon."
    ]


def _device_problems(settings: Settings) -> list[str]:
    if is_device(device := str(settings["device"])):
        return []
    return [f"device is '{device}'; choose auto, cpu, cuda or cuda:N."]


def _ledger_problems(settings: Settings) -> list[str]:
    from fedprivacy.ledger import ledger_url

    return _refusal(partial(ledger_url, named)) if (named := str(settings.get("ledger", ""))) else []


def _tracker_problems(settings: Settings) -> list[str]:
    return [
        f"trackers names '{name}'; choose from {', '.join(TRACKERS)}, separated by commas."
        for name in names_in(str(settings.get("trackers", "")))
        if name not in TRACKERS
    ]


def _ignored(setting: str, settings: Settings) -> list[str]:
    """A setting that a strategy that has a name here would ignore."""
    known = STRATEGIES.get(name := str(settings["strategy"]))
    if known is None or setting not in settings or setting in known.defaults:
        return []
    able = " or ".join(other for other, able in STRATEGIES.items() if setting in able.defaults)
    return [
        f"{key_of(setting)} is {settings[setting]}, which strategy {name} does not take; leave it open, or choose "
        f"{able}."
    ]


def _weightless(settings: Settings) -> list[str]:
    """Weights where an average has none."""
    known, weighting = STRATEGIES.get(name := str(settings["strategy"])), settings["weighting"]
    if weighting == "size":
        return []
    if settings.keys() & _USER_LEVEL_SWITCHES:
        return [f"weighting is '{weighting}', and with user-level noise all clients count alike; leave weighting open."]
    if known is None or known.averages:
        return []
    return [f"weighting is '{weighting}', and strategy '{name}' weighs no update; choose one of {_averaging()}."]


def _too_few_clients(settings: Settings) -> list[str]:
    known = STRATEGIES.get(name := str(settings["strategy"]))
    if "clients" not in settings:  # of a task that cannot be loaded
        return []
    share = max(int(float(settings["clients"]) * float(settings["fraction_train"])), 1)
    asked = int(settings.get("cohort_size", share))
    if known is None or known.fewest_clients == 1:
        return []
    needs = f"strategy is '{name}', which needs {known.fewest_clients} clients in each round, and"
    if asked < known.fewest_clients:
        said = "cohort-size" if "cohort_size" in settings else "clients times fraction-train"
        return [f"{needs} {said} is {asked}; give more clients, or choose another strategy."]
    fewer = [f"availability '{settings['availability']}'"] if settings.get("availability") else []
    fewer += ["cohort-sampling 'poisson'"] if settings["cohort_sampling"] == "poisson" else []
    return [f"{needs} {words} may leave fewer; leave that open, or choose another strategy." for words in fewer]


def _cohort_problems(settings: Settings) -> list[str]:
    """How many clients a round asks, said in one way that makes sense."""
    size, problems = settings.get("cohort_size"), []
    if size is None:
        return [
            f"{key_of(name)} is {settings[name]}, and there is no cohort-size that it would be about; give one."
            for name, usual in (("cohort_sampling", "fixed"), ("over_selection", 1.0))
            if settings[name] != usual
        ]
    if settings["fraction_train"] != 1.0:
        problems.append("cohort-size and fraction-train both say how many clients a round asks; give one of them.")
    if int(size) > int(settings.get("clients", size)):
        problems.append(f"cohort-size is {size}, and clients is {settings['clients']}; give at most as many.")
    if settings["over_selection"] != 1.0 and settings["cohort_sampling"] == "poisson":
        problems.append(
            "over-selection waits for the first cohort-size answers, and cohort-sampling 'poisson' asks for no fixed "
            "number; leave one of them open."
        )
    return problems


def _asynchronous_problems(settings: Settings) -> list[str]:
    """What does not go with rounds in which clients are replaced one by one."""
    given = {name: int(settings[name]) for name in _ASYNCHRONOUS if name in settings}
    if not given:
        return []
    if len(given) == 1:
        ((name, number),) = given.items()
        other = next(key_of(other) for other in _ASYNCHRONOUS if other != name)
        return [f"{key_of(name)} is {number} and {other} is open; asynchronous rounds need both, others neither."]
    problems = [
        f"{key_of(name)} is {number}, and clients is {settings['clients']}; give at most as many."
        for name, number in given.items()
        if number > int(settings.get("clients", number))
    ]
    problems += [
        f"{key_of(name)} is {settings[name]}, and asynchronous rounds (buffer-size, concurrency) replace clients one "
        "by one, as they are done; leave it open."
        for name, usual in _TOGETHER.items()
        if settings.get(name, usual) != usual
    ]
    problems += _unable_to_average(settings, "an asynchronous round gives it the mean of a buffer")
    unable = {
        "local-evaluation is on": bool(settings["local_evaluation"]),
        "privacy is off": not settings["privacy"],
        "there is user-level noise": bool(settings.keys() & _USER_LEVEL_SWITCHES),
    }
    return problems + [
        f"{what}, which asynchronous rounds cannot do; leave that, or buffer-size and concurrency, open."
        for what, given in unable.items()
        if given
    ]


def _averaging() -> str:
    """The strategies that average updates, for people."""
    return ", ".join(name for name, strategy in STRATEGIES.items() if strategy.averages)


def _unable_to_average(settings: Settings, why: str) -> list[str]:
    """A strategy that makes something else of the updates than their average, where it is given no more than that."""
    known = STRATEGIES.get(name := str(settings["strategy"]))
    if known is None or known.averages:
        return []
    return [f"strategy is '{name}', which compares the clients' updates, and {why}; choose one of {_averaging()}."]


def _too_few_steps(settings: Settings) -> list[str]:
    known = STRATEGIES.get(name := str(settings["strategy"]))
    if known is None or float(settings.get("local_steps", known.fewest_local_steps)) >= known.fewest_local_steps:
        return []
    return [
        f"strategy is '{name}', which is fedavg when local-steps is {settings['local_steps']}; give local-steps "
        f"from {known.fewest_local_steps}, or choose another strategy."
    ]


def _formless(setting: str, check: Callable[[str], None], settings: Settings) -> list[str]:
    """What is wrong with the form of a setting that is not left open."""
    return _refusal(partial(check, text)) if (text := str(settings.get(setting, ""))) else []


def _without_user_level(setting: str, settings: Settings) -> list[str]:
    """A setting of user-level noise where there is none."""
    if setting not in settings or settings.keys() & _USER_LEVEL_SWITCHES:
        return []
    return [
        f"{key_of(setting)} is {settings[setting]}, and there is no user-level noise; give a "
        "user-level-noise-multiplier or a user-level-epsilon, or leave it open."
    ]


def _user_level_problems(settings: Settings) -> list[str]:
    """What does not go with a noisy average that the server makes."""
    if not settings.keys() & _USER_LEVEL_SWITCHES:
        return []
    problems = _unable_to_average(settings, "with user-level noise there is nothing but their noisy average")
    if settings["local_evaluation"]:
        problems.append(
            f"local-evaluation is {settings['local_evaluation']}, and what it tells is in no user-level account; leave "
            "it open: the server's own evaluation sees the global model alone."
        )
    if "user_level_quantile" in settings and settings["user_level_clipping"] != "adaptive":
        problems.append(
            f"user-level-quantile is {settings['user_level_quantile']}, and user-level-clipping is "
            f"{settings['user_level_clipping']}; choose adaptive, or leave the quantile open."
        )
    problems += [
        f"{key_of(name)} is {settings[name]}, and with user-level noise each client joins with probability "
        "fraction-train, whatever others do; leave it open."
        for name, usual in _SELECTING.items()
        if settings.get(name, usual) != usual
    ]
    delta, clients = float(settings["user_level_delta"]), settings.get("clients")
    if clients is not None and delta * float(clients) >= 1.0:
        problems.append(
            f"user-level-delta is {delta} and clients is {clients}: at a delta of 1 / clients, a run that publishes "
            f"all of one client would do; give a user-level-delta well below {1.0 / float(clients):g}."
        )
    return problems


def _refusal(use: Callable[[], object]) -> list[str]:
    """What is wrong with settings in the words of what uses them."""
    try:
        use()
    except ValueError as error:
        return [str(error)]
    return []


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Settings], list[str]]], ...] = (
    *((("strategy", name), partial(_ignored, name)) for name in SERVER_SETTINGS),
    (("strategy", "clients", "fraction_train", "cohort_size", "cohort_sampling", "availability"), _too_few_clients),
    (("clients", "fraction_train", "cohort_size", "cohort_sampling", "over_selection"), _cohort_problems),
    (
        ("clients", "strategy", "local_evaluation", "privacy", *_TOGETHER, *_ASYNCHRONOUS, *_USER_LEVEL_SWITCHES),
        _asynchronous_problems,
    ),
    (("speeds",), partial(_formless, "speeds", speeds.check_form)),
    (("availability",), partial(_formless, "availability", availability.check_form)),
    (("client_terms",), partial(_formless, "client_terms", client_terms.check_form)),
    (("strategy", "local_steps"), _too_few_steps),
    ((*OF_ALGORITHMS, *GOES_WITH), algorithm_problems),
    (("strategy", "weighting", *_USER_LEVEL_SWITCHES), _weightless),
    (("optimizer", "momentum", "weight_decay"), _optimizer_problems),
    (("epsilon", "noise_multiplier", "spend"), _noise_problems),
    (("epsilon", "spend"), _spend_problems),
    (("privacy", "local_evaluation"), _evaluation_problems),
    (("rounds", "local_evaluation"), _too_rare_evaluations),
    (("device",), _device_problems),
    *(((name, *_USER_LEVEL_SWITCHES), partial(_without_user_level, name)) for name in _OF_USER_LEVEL),
    (
        (
            *("strategy", "local_evaluation", "clients", "user_level_delta", "user_level_clipping"),
            *("user_level_quantile", *_SELECTING),
        ),
        _user_level_problems,
    ),
    (("ledger",), _ledger_problems),
    (("trackers",), _tracker_problems),
)
"""What is looked at together, by the fields that it is about."""
