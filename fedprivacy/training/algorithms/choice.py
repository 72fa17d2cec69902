"""The choice of an algorithm: its settings, and what a run has to be for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedprivacy._support.settings import WHOLE, KnownSettings, SettingsGroup, key_of, setting
from fedprivacy.training.algorithms import ALGORITHM_SETTINGS, ALGORITHMS, DEFAULT_ALGORITHM, arguments_of
from fedprivacy.training.algorithms.pull import LARGEST_PULL


@dataclass(frozen=True, kw_only=True)
class AlgorithmSettings(SettingsGroup, question="Which algorithm?", basic=("algorithm", "pull")):
    """Algorithm of the clients: their use of a round's local steps, and what they keep of their own."""

    algorithm: str = setting(
        f"Algorithm of a round's local steps: {', '.join(ALGORITHMS)}. fedavg: all train the global model; "
        "the others keep something of their own.",
        DEFAULT_ALGORITHM,
        choices=ALGORITHMS,
    )
    pull: float | None = setting(
        "Lambda: how much mr-mtl and ditto pull a client's own model to the global one; 0: not at all. Left open: 1.",
        None,
        bounds=(0.0, LARGEST_PULL),
    )
    personal_steps: int | None = setting(
        "How many of a round's local steps ditto and fedrep spend on what is a client's own. Left open: half.",
        None,
        bounds=WHOLE,
    )
    fine_tuning_rounds: int = setting(
        "In so many last rounds every client trains a model of its own, from the global one, which stays as it is.",
        0,
        bounds=(0, 10**9),
    )

    @classmethod
    def problems(cls, known: KnownSettings) -> list[str]:
        """Find settings that the algorithm does not take, and runs in which it makes no sense."""
        return known.problems(
            _not_taken,
            _too_few_steps,
            _all_steps_personal,
            _no_plain_steps,
            _all_rounds_tune,
            _tunes_what_is_personal,
            _kept_from_round_to_round,
        )


def _not_taken(algorithm: str, pull: float | None = None, personal_steps: int | None = None) -> Iterator[str]:
    for name, value in zip(ALGORITHM_SETTINGS, (pull, personal_steps), strict=True):
        if value is not None and name not in arguments_of(algorithm):
            able = " or ".join(other for other in ALGORITHMS if name in arguments_of(other))
            yield (
                f"{key_of(name)} is {value}, which algorithm '{algorithm}' does not take; leave it open, or choose "
                f"{able}."
            )


def _too_few_steps(algorithm: str, local_steps: int) -> Iterator[str]:
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
