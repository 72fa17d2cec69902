"""Simulated clients that train without privacy, by the null mechanism: many together, or each by its messages.

The app is one of its own, which `fedprivacy.simulation.simulate` gives to the engines of a simulation. The app that
data owners deploy (`fedprivacy.flower.client.client_app`) neither imports it nor knows its messages, so that nothing
that a server sends can reach it. Should somebody deploy it all the same, it refuses: the process says that it is no
simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedprivacy.flower.client import release
from fedprivacy.flower.client.client_app import ENROL_ACTION, TaskApp, TrainingRequest, kept_before, refusing
from fedprivacy.flower.client.local import LocalClient, engine_of, simulated_client
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.kept import KeptFor, KeptInState
from fedprivacy.flower.simulated.null_mechanism import NullMechanism, PlainCohort
from fedprivacy.flower.simulated.populations import Order, Start, load, optimizer_in, trainees
from fedprivacy.flower.wire.messages import WireMessage
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.mechanisms.keystream import Keystream
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.tasks import Task
from fedprivacy.training.algorithms import text_of
from fedprivacy.training.cohort import Portion, Trainee


@dataclass(frozen=True, slots=True)
class Assignment(WireMessage):
    """The request to train a round's local steps without privacy: no grant, and nothing that a deployed app reads.

    The client takes all training settings from the run's configuration, except the sampling rate, which may differ
    between clients: in a simulation server and clients have one owner.
    """

    name = "fedprivacy.assignment"
    client_id: str
    round: int
    sampling_rate: float


def train_without_privacy(
    config: RunConfig, start: Start, orders: Sequence[Order], clients: Sequence[LocalClient]
) -> Iterator[Portion]:
    """SGD by the null mechanism; a `TrainTogether`.

    Raises:
        ConfigError: the run is private.
    """
    if config.privacy:
        raise ConfigError(
            ["privacy is on; a private run's clients train by private_client, which clips and adds noise."]
        )
    engine = _engine(clients[0], config)
    load(engine.model, start.arrays)
    control = start.control_for(engine.model)
    training = _training(config, engine, clients[0], start.round, start.proximal_mu, control)
    return training.train(trainees(orders, clients, start, NullMechanism), start.round)


def _engine(client: LocalClient, config: RunConfig) -> GradientEngine:
    """Return the engine of a task's model; that it could clip is of no matter, for the clipping norm is infinite."""
    return engine_of(
        client.task, client.shard.inputs.device, "flat", max(config.augmentation_multiplicity, 1), autocast=None
    )


def _training(  # noqa: PLR0917 - what a round begins with
    config: RunConfig, engine: GradientEngine, client: LocalClient, number: int, pull: float, control: Tensor | None
) -> PlainCohort:
    """Return the training of clients in a round; of all those on one device, or of one."""
    algorithm, views = config.algorithm_in(number), client.views(config.augmentation_multiplicity)
    return PlainCohort(engine, optimizer_in(config, number), pull, algorithm, control, views, loss=client.task.loss)


class PlainApp(TaskApp):
    """The ClientApp of a run without privacy: its clients train each by itself or many together."""

    train_together = staticmethod(train_without_privacy)


def plain_client(task: Task | None, config: RunConfig) -> ClientApp:
    """A Flower ClientApp for simulations, whose updates are not private; the task is None if the run names it."""
    app = PlainApp(task, config)

    @app.query(ENROL_ACTION)
    @refusing
    def enrol(message: Message, context: Context) -> Message:
        return release.enrolment(message, simulated_client(context, task, config).public_facts())

    @app.train()
    @refusing
    def train(message: Message, context: Context) -> Message:
        client = simulated_client(context, task, config)
        arrays = _trained(client, TrainingPlan(config, client.task), message, KeptInState(context.state))
        return Message(RecordDict({ARRAYS: arrays}), reply_to=message)

    return app


def _trained(client: LocalClient, plan: TrainingPlan, message: Message, store: KeptInState) -> ArrayRecord:
    """The parameters after the round's local steps from the model that the server sends: not private."""
    request, config = TrainingRequest.of(message, Assignment), plan.config
    rate, number, algorithm = request.grant.sampling_rate, request.grant.round, config.algorithm_in(request.grant.round)
    client = client.standardised(client.standardising(request.standardise))
    engine = _engine(client, config)
    engine.model.load_state_dict(request.parameters_for(engine.model), strict=False)
    whose = KeptFor("", text_of(algorithm), number)
    before = kept_before(store.load(whose) if algorithm.keeps else None, request, engine.model, algorithm)
    # With a seed, the randomness that samples is that of the private run, if that was the first on its ledger.
    keystream = Keystream.secret() if client.seed is None else Keystream.from_seed(client.seed, client.dataset_id)
    batch = rate * plan.shard_size(len(client.shard) if client.task.shard_sizes_public else 0)
    trainee = Trainee(client.shard, keystream, NullMechanism(rate), batch, config.local_steps, before.own)
    training = _training(config, engine, client, number, request.proximal_mu, before.control)
    trained = training.alone(0, trainee, number)
    if trained.kept is not None:
        store.keep(whose, trained.kept[0])
    return ArrayRecord(
        {name: Array(p.detach().cpu().numpy()) for name, p in trainable_parameters(engine.model).items()}
    )
