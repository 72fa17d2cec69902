"""Settings with which an algorithm or a strategy trains as another one, in words, before a run. It refuses nothing."""

from __future__ import annotations

from collections.abc import Iterator

from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.training.algorithms import Ditto, MeanRegularised
from fedprivacy.training.algorithms.pull import pull_that_leaves, share_left

_ALONE_LOCAL = {"mr-mtl", "scaffold", "fedper", "fedbn"}
"""Algorithms with which a client that is alone trains as locally. Ditto and FedRep divide its steps; whoever gives
FedAvg one client wants training in one place.
"""


def equivalents(config: RunConfig) -> list[str]:
    """Say which algorithm a run's settings come to, at most once for its algorithm and once for its strategy.

    Each line names the settings, their values, the other algorithm and the remedy.
    """
    algorithm = next((words for rule in (_alone, _pull, _controls) for words in rule(config)), "")
    return [*filter(None, [algorithm]), *_strategy(config)]


def _alone(config: RunConfig) -> Iterator[str]:
    averaged = config.strategy == "fedavg" and not config.user_level
    if config.clients == 1 and config.algorithm in _ALONE_LOCAL and averaged:
        yield (
            f"clients is 1 and algorithm is '{config.algorithm}', which then trains as local: there is nobody to "
            "average with. Give more clients, or choose algorithm local."
        )


def _pull(config: RunConfig) -> Iterator[str]:
    algorithm, rate = config.algorithm_in(1), config.learning_rate_in(1)
    if not isinstance(algorithm, MeanRegularised | Ditto):
        return
    name, pull, steps = config.algorithm, algorithm.pull, config.local_steps
    if isinstance(algorithm, Ditto):
        steps = algorithm.personal_steps or steps // 2
    if pull == 0.0:
        yield (
            f"pull is 0 and algorithm is '{name}', whose own models are then trained as by local, in {steps} of each "
            f"round's local-steps: nothing pulls them to the global model. Give a larger pull, such as "
            f"{pull_that_leaves(0.5, rate, steps):.2g}, or choose algorithm local."
        )
    elif share_left(pull, rate, steps) == 0.0:
        like = "trains as" if config.learning_rate_schedule == "constant" else "begins as"
        other = "fedavg" if name == "mr-mtl" else "fedavg with fine-tuning-rounds 1"
        yield (
            f"pull is {pull:g} and learning-rate is {config.learning_rate:g}: from a product of 1 on, each round "
            f"begins at the global model, and algorithm '{name}' {like} {other}. Give a smaller pull, such as "
            f"{pull_that_leaves(0.5, rate, steps):.2g}, which leaves a client half of its own way in a round, or "
            "choose algorithm fedavg."
        )


def _controls(config: RunConfig) -> Iterator[str]:
    partly = config.cohort_size or config.availability or config.drop_out or config.deadline
    if config.algorithm == "scaffold" and config.local_steps == 1 and config.fraction_train == 1.0 and not partly:
        yield (
            "local-steps is 1 and algorithm is 'scaffold', which then trains as fedavg, as all clients join each round "
            "and their corrections cancel out. Give more local-steps, or choose algorithm fedavg."
        )


def _strategy(config: RunConfig) -> Iterator[str]:
    if config.strategy == "fedprox" and config.proximal_mu == 0.0:
        yield (
            "proximal-mu is 0 and strategy is 'fedprox', which then trains as fedavg. Give a larger proximal-mu, or "
            "choose strategy fedavg."
        )
    if config.strategy == "fedavgm" and config.server_momentum == 0.0 and config.server_learning_rate == 1.0:
        yield (
            "server-momentum is 0, server-learning-rate is 1 and strategy is 'fedavgm', which then trains as fedavg. "
            "Give a server-momentum such as 0.9, or choose strategy fedavg."
        )
