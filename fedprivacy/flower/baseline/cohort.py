"""The simulated clients of a population, trained together without privacy.

What a client does here is what `fedprivacy.flower.baseline.client` has it do for a message, from the same samples. A
population is given this instead of private training, as one thing; that has no way to leave out its mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import torch

from fedprivacy.flower.baseline.assignment import BaselineOrder
from fedprivacy.flower.client.local import LocalClient
from fedprivacy.flower.simulated.orders import Order, Start
from fedprivacy.flower.simulated.populations import load, optimizer_in
from fedprivacy.gradients import GradientEngine
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.tasks import Task
from fedprivacy.training.baseline_cohort import BaselineCohort, BaselineTrainee, Unclipped
from fedprivacy.training.cohort import Portion
from fedprivacy.training.sampled import layout_of


def train_without_privacy(
    config: RunConfig, start: Start, orders: Sequence[Order], clients: Sequence[LocalClient]
) -> Iterator[Portion]:
    """SGD without clipping and noise; a `TrainTogether`.

    Raises:
        ConfigError: the run is private.
    """
    if config.privacy:
        raise ConfigError(
            ["privacy is on; a private run's clients train by private_client, which clips and adds noise."]
        )
    one = clients[0]
    engine = _engine(one.task, one.shard.inputs.device, config.augmentation_multiplicity)
    load(engine.model, start.arrays)
    training = BaselineCohort(
        engine,
        one.task.loss,
        optimizer_in(config, start.round),
        start.proximal_mu,
        config.algorithm_in(start.round),
        start.control_for(engine.model),
        one.views(config.augmentation_multiplicity),
    )
    trainees = [_trainee(order, client, start.keystream) for order, client in zip(orders, clients, strict=True)]
    return training.train(trainees, start.round)


def _trainee(order: Order, client: LocalClient, base: Keystream) -> BaselineTrainee:
    assert isinstance(order, BaselineOrder)  # another was charged for
    own = None if order.own is None else order.own.to(client.shard.inputs.device)
    keystream = base.of(client.dataset_id)
    return BaselineTrainee(client.shard, keystream, order.sampling_rate, order.expected_batch_size, order.steps, own)


@cache
def _engine(task: Task, device: torch.device, multiplicity: int) -> GradientEngine:
    """Kept for the life of the process, as that of private clients is."""
    return GradientEngine(task.model().to(device), task.loss, Unclipped(), layout=layout_of(task, multiplicity))
