"""What an algorithm goes with: which settings it takes, and which it makes no sense with."""

from __future__ import annotations

from collections.abc import Mapping

from fedprivacy._support.settings import Value, key_of
from fedprivacy.runs.settings.strategies import STRATEGIES
from fedprivacy.training.algorithms import ALGORITHM_SETTINGS, ALGORITHMS, Algorithm, arguments_of

Settings = Mapping[str, Value]

OF_ALGORITHMS = ("algorithm", "fine_tuning_rounds", *ALGORITHM_SETTINGS)
"""The fields that choose one."""

GOES_WITH = (
    *("rounds", "local_steps", "optimizer", "momentum", "weight_decay", "strategy", "buffer_size"),
    *("user_level_noise_multiplier", "user_level_epsilon"),
)
"""Fields that are held against it."""


def algorithm_problems(settings: Settings) -> list[str]:
    """What is wrong with an algorithm's own settings, and with others beside it; a line for each."""
    name = str(settings["algorithm"])
    algorithm = ALGORITHMS[name]
    tuned = int(settings.get("fine_tuning_rounds", 0))
    keeps = keeping(name, tuned)
    return [
        *_ignored(name, settings),
        *_step_problems(name, algorithm, settings),
        *_tuning_problems(name, algorithm, tuned, settings),
        *(_unable(keeps, settings) if keeps else []),
    ]


def keeping(name: str, tuned: int) -> str:
    """Which of an algorithm's name and its fine-tuning rounds has clients keep something, for people; empty: none."""
    if ALGORITHMS[name].keeps:
        return f"algorithm is '{name}'"
    return f"fine-tuning-rounds is {tuned}" if tuned else ""


def _ignored(name: str, settings: Settings) -> list[str]:
    return [
        f"{key_of(setting)} is {settings[setting]}, which algorithm '{name}' does not take; leave it open, or choose "
        f"{' or '.join(other for other in ALGORITHMS if setting in arguments_of(other))}."
        for setting in ALGORITHM_SETTINGS
        if setting in settings and setting not in arguments_of(name)
    ]


def _step_problems(name: str, algorithm: type[Algorithm], settings: Settings) -> list[str]:
    problems, steps = [], int(settings.get("local_steps", algorithm.fewest_steps))
    if steps < algorithm.fewest_steps:
        problems.append(
            f"algorithm is '{name}', which divides a round's local steps, and local-steps is {steps}; give at least "
            f"{algorithm.fewest_steps}."
        )
    personal = int(settings.get("personal_steps", 0))
    if "personal_steps" in arguments_of(name) and personal >= max(steps, algorithm.fewest_steps):
        problems.append(
            f"personal-steps is {personal} of local-steps {steps}, and the global model needs at least one of them; "
            "give fewer personal-steps, or more local-steps."
        )
    plain = settings.get("optimizer", "sgd") == "sgd" and not settings.get("momentum", 0.0)
    if algorithm.plain_sgd and not (plain and not settings.get("weight_decay", 0.0)):
        problems.append(
            f"algorithm is '{name}', whose controls are told by plain gradient steps; choose optimizer sgd, momentum 0 "
            "and weight-decay 0."
        )
    known = STRATEGIES.get(strategy := str(settings.get("strategy", "")))
    if algorithm.server is not None and (known is None or not known.averages):
        problems.append(
            f"algorithm is '{name}', whose controls are told by the average, and strategy is '{strategy}'; choose one "
            f"of {', '.join(other for other, known in STRATEGIES.items() if known.averages)}."
        )
    return problems


def _tuning_problems(name: str, algorithm: type[Algorithm], tuned: int, settings: Settings) -> list[str]:
    rounds = settings.get("rounds")
    if tuned and rounds is not None and tuned >= int(rounds):
        return [
            f"fine-tuning-rounds is {tuned} of rounds {rounds}, so that no global model is trained; give fewer, or "
            "choose algorithm local."
        ]
    if tuned and algorithm.personal:
        return [
            f"fine-tuning-rounds is {tuned}, and algorithm '{name}' trains each client's own model already; leave it "
            "open, or choose fedavg or scaffold."
        ]
    return []


def _unable(keeps: str, settings: Settings) -> list[str]:
    """What does not go with something that clients keep."""
    unable = {
        "buffer-size makes rounds asynchronous": "buffer_size" in settings,
        "there is user-level noise, which protects what the server averages alone": bool(
            {"user_level_noise_multiplier", "user_level_epsilon"} & settings.keys()
        ),
    }
    return [
        f"{keeps}, so that clients keep something from round to round, and {what}; leave one of them open."
        for what, given in unable.items()
        if given
    ]
