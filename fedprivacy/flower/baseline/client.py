"""A simulated client that trains without privacy.

It is an app of its own, which `fedprivacy.simulation.simulate` hands to the engines of a simulation. The app that data
owners deploy (`fedprivacy.flower.client.client_app`) neither imports it nor knows its messages, so that nothing that a
server sends can reach it. Should somebody deploy it all the same, it refuses: the process says that it is no
simulation.
"""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedprivacy.flower.baseline.assignment import Assignment
from fedprivacy.flower.baseline.cohort import train_without_privacy
from fedprivacy.flower.client import release
from fedprivacy.flower.client.client_app import (
    ENROL_ACTION,
    TaskApp,
    kept_before,
    refusing,
)
from fedprivacy.flower.client.local import LocalClient, simulated_client
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.client.request import TrainingRequest
from fedprivacy.flower.kept import KeptFor, KeptInState
from fedprivacy.flower.simulated.populations import optimizer_in
from fedprivacy.gradients import trainable_parameters
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import RunConfig
from fedprivacy.tasks import Task
from fedprivacy.tasks.identity import dataset_id
from fedprivacy.training.algorithms import text_of
from fedprivacy.training.baseline import Baseline
from fedprivacy.training.sampled import layout_of


class BaselineApp(TaskApp):
    """The ClientApp of a baseline: its clients train without privacy, each by itself or many together."""

    train_together = staticmethod(train_without_privacy)


def baseline_client(task: Task | None, config: RunConfig) -> ClientApp:
    """A Flower ClientApp for simulations, whose updates are not private; the task is None where the run names it."""
    app = BaselineApp(task, config)

    @app.query(ENROL_ACTION)
    @refusing
    def enrol(message: Message, context: Context) -> Message:
        return release.enrolment(message, simulated_client(context, task, config).public_facts())

    @app.train()
    @refusing
    def train(message: Message, context: Context) -> Message:
        client = simulated_client(context, task, config)
        parameters = _trained(client, TrainingPlan(config, client.task), message, KeptInState(context.state))
        arrays = ArrayRecord({name: Array(values.cpu().numpy()) for name, values in parameters.items()})
        return Message(RecordDict({ARRAYS: arrays}), reply_to=message)

    return app


def _trained(client: LocalClient, plan: TrainingPlan, message: Message, store: KeptInState) -> dict[str, Tensor]:
    """The parameters after the round's local steps from the model that the server sends: not private."""
    request, config = TrainingRequest.of(message, Assignment), plan.config
    assignment = request.grant
    client = client.standardised(client.standardising(request.standardise))
    disclosed = len(client.shard) if client.task.shard_sizes_public else 0
    rate = assignment.sampling_rate
    optimizer = optimizer_in(config, assignment.round)
    algorithm = config.algorithm_in(assignment.round)
    views = client.views(config.augmentation_multiplicity)
    layout = layout_of(client.task, config.augmentation_multiplicity)
    batch, pull = rate * plan.shard_size(disclosed), request.proximal_mu
    training = Baseline(rate, batch, optimizer, pull, algorithm, views, layout)
    model = _model(client.task, client.shard.inputs.device)
    model.load_state_dict(request.parameters_for(model), strict=False)
    steps, number, keystream = config.local_steps, assignment.round, _keystream(client)
    whose = KeptFor("", text_of(algorithm), number)
    before = kept_before(store.load(whose) if algorithm.keeps else None, request, model, algorithm)
    update = training.train(
        model, client.task.loss, client.shard, steps=steps, round=number, keystream=keystream, before=before
    )
    if update.kept is not None:
        store.keep(whose, update.kept)
    return {name: p.clone() for name, p in trainable_parameters(model).items()}


def _keystream(client: LocalClient) -> Keystream:
    """The randomness that samples: with a seed that of the private run, where it was the first on its ledger."""
    if client.seed is None:
        return Keystream.secret()
    return Keystream.from_seed(client.seed, dataset_id(client.task, client.client_id))


@cache
def _model(task: Task, device: torch.device) -> nn.Module:
    """Shared by the clients of one process: load parameters before use."""
    return task.model().to(device)
