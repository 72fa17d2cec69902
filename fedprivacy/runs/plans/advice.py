"""Advice before a run: settings that are allowed and probably not meant. It refuses nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from fedprivacy.runs.plans.plan import RunPlan, TrainingPlan
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.tasks import ShardSource
from fedprivacy.tasks.identity import simulated_client_id
from fedprivacy.training.algorithms import Ditto, MeanRegularised
from fedprivacy.training.algorithms.algorithm import pull_that_leaves, share_left
from fedprivacy.values.wording import budget_text, count_text, delta_text, noise_text

_ALONE_LOCAL = {"mr-mtl", "scaffold", "fedper", "fedbn"}
"""Algorithms with which a client that is alone trains as locally. Ditto and FedRep divide its steps; whoever gives
FedAvg one client wants training in one place.
"""


def budget_advice(plan: RunPlan, sizes: Mapping[str, float]) -> list[str]:
    """Say where a run has not its task's budget, or its delta promises nothing; see `delta_advice` for the sizes."""
    return [*filter(None, (_budget_advice(plan), delta_advice(plan, sizes)))]


def training_advice(plan: RunPlan, *, watched: bool = False) -> list[str]:
    """Say that a run measures nothing, or trains by another algorithm than it names; each line has its remedy.

    Args:
        plan: of the run; of one that asks there is nothing to say.
        watched: whether callbacks may measure the model.
    """
    if not isinstance(plan, TrainingPlan):
        return []
    unmeasured = (
        f"Nothing will be measured: task {plan.task.name} has no evaluate() and no held_out(). Give it one of the two, "
        "or set local-evaluation."
    )
    return [unmeasured] * (not (plan.measures or watched)) + equivalents(plan.config)


def _budget_advice(plan: RunPlan) -> str:
    """Say that a given noise multiplier leaves a run without its task's budget; else return an empty text."""
    noise, usual = plan.config.noise_multiplier, plan.task.recipe.epsilon
    if noise is None or plan.config.budget.enforced or not math.isfinite(usual):
        return ""
    epsilon = budget_text(usual)
    return (
        f"noise-multiplier {noise_text(noise)} was given: the task's epsilon {epsilon} is no budget of this run; give "
        f"epsilon {epsilon}, too, for one."
    )


def delta_advice(plan: RunPlan, sizes: Mapping[str, float]) -> str:
    """Say that a run's delta is too large if it is above 1 / records of a client; else return an empty text.

    Whoever publishes each record with probability delta keeps (0, delta)-differential privacy.

    Args:
        plan: of the run.
        sizes: *public* sizes by client_id, as `RunPlan.shard_size` gives them: what clients disclosed, or the task's
            public guess. A size that is private must not get here.
    """
    delta = plan.config.delta
    if not sizes or delta * max(sizes.values()) <= 1.0:
        return ""
    largest = max(sizes, key=lambda client_id: sizes[client_id])
    records = int(sizes[largest])
    counted = count_text(records, plan.unit.name)
    whose = f"{largest} has {counted}"
    if not plan.task.shard_sizes_public:
        whose = f"a client has about {counted} (the task's nominal_shard_size)"
    at_most_a_tenth = delta_text(float(f"1e-{len(str(records - 1)) + 1}"))
    return (
        f"delta is {delta_text(delta)}, and {whose}: to publish each of them with that probability would keep the "
        f"promise. Choose a delta well below 1 / {records}, for example {at_most_a_tenth}."
    )


def simulated_sizes(plan: RunPlan) -> dict[str, float]:
    """The public sizes of a plan's simulated clients, by client_id; those that cannot be known before are missing."""
    parts = plan.config.clients
    if not plan.task.shard_sizes_public:
        return {simulated_client_id(0, parts): plan.shard_size(0)}
    sizes = {}
    for part in range(parts):
        try:
            shard = plan.task.shard(ShardSource(partition_id=part, num_partitions=parts))
        except Exception:  # the task's own code: it may know of real clients only, who disclose their sizes later
            return {}
        sizes[simulated_client_id(part, parts)] = plan.shard_size(len(shard))
    return sizes


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
