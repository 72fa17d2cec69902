"""Training without privacy, a simulation's baseline: its mechanism, its clients and its books. Nothing here is private.

The null mechanism samples the records that a private step samples, its clipping norm is infinite, and it adds no noise.
Everything else is private training's own: local steps, optimisers, algorithms (`fedprivacy.training.local_round`) and
stacks of small models (`fedprivacy.training.cohort`). One client alone needs no gradients of records, so those of
batches are computed. Clients train by it many together (`train_without_privacy`), or each by its messages
(`plain_client`). The books (`NullBooks`) count who trained how often: nothing is charged, and no epsilon bounds
anything.

`fedprivacy.simulation.simulate` alone imports this module and gives the app to the engines of a simulation. No module
that a deployed client loads (`fedprivacy.flower.client.client_app`) imports it or knows its messages, no grant or
setting can name the mechanism, and its results are of no type that `fedprivacy.flower.client.release` sends: nothing
that a server sends can reach it. Should somebody deploy the app all the same, it refuses: the process says that it is
no simulation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprivacy.accounting import UNLIMITED
from fedprivacy.flower.client import release
from fedprivacy.flower.client.client_app import ENROL_ACTION, TaskApp, TrainingRequest, kept_before, refusing
from fedprivacy.flower.client.local import LocalClient, engine_of, simulated_client
from fedprivacy.flower.client.release import ARRAYS
from fedprivacy.flower.kept import KeptFor, KeptInState
from fedprivacy.flower.server.checkpoint import Checkpoint
from fedprivacy.flower.server.nodes import Eligible, EnrolledClient
from fedprivacy.flower.server.one_round import RoundOutcome
from fedprivacy.flower.simulated.populations import Order, Start, load, optimizer_in, trainees
from fedprivacy.flower.wire.messages import WireMessage
from fedprivacy.gradients import GradientEngine, trainable_parameters
from fedprivacy.gradients.models import Loss, checked_losses
from fedprivacy.mechanisms.gaussian_sum import poisson_sample
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.runs.plans.plan import TrainingPlan
from fedprivacy.runs.records.folder import read_history
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig
from fedprivacy.tasks import Task
from fedprivacy.training.algorithms import text_of
from fedprivacy.training.batches import sampled_batches
from fedprivacy.training.cohort import CohortLoop, Portion, StackedClients, Trainee, try_portion
from fedprivacy.training.local_round import Kept, LocalSteps
from fedprivacy.values.attempt import Attempt
from fedprivacy.values.events import History
from fedprivacy.values.spent import ClientSpent, PopulationSpent

_MOST_RECORDS = 4096
"""Maximum number of rows whose gradients are computed at once; a larger sample is split and its sums are added."""


@dataclass(frozen=True, slots=True)
class NullMechanism:
    """Poisson sampling alone. There is no event that could be charged for it."""

    sampling_rate: float

    @property
    def clipping_norm(self) -> float:
        """No gradient is longer."""
        return math.inf


@dataclass(frozen=True)
class PlainCohort(CohortLoop[NullMechanism]):
    """Training without privacy: its results depend on records without any bound.

    A client of a stack arrives where it would arrive `alone`, up to the rounding of float32: a stack computes the same
    sums by other products.

    Attributes:
        loss: the engine's.
    """

    loss: Loss = field(kw_only=True)

    def train(self, trainees: Sequence[Trainee[NullMechanism]], round: int) -> Iterator[Portion]:
        """Train every client, in portions; whoever a stack cannot train is trained alone.

        A stack computes each record's gradient, which may overflow where the batch's does not, and an error in it is
        one client's fault.
        """
        failed: list[int] = []
        for portion in super().train(trainees, round):
            done = portion.parameters.isfinite().all(1)
            if portion.kept is not None:
                done &= portion.kept.isfinite().all(1)
            if portion.problem is not None:
                done[:] = False
            failed += [place for place, fine in zip(portion.places, done.tolist(), strict=True) if not fine]
            if bool(done.any()):
                yield _rows(portion, done.nonzero().squeeze(1))
        for place in sorted(failed):
            yield try_portion(self.engine.model, partial(self.alone, place, trainees[place], round), [place])

    def alone(self, place: int, one: Trainee[NullMechanism], round: int) -> Portion:
        """Train one client by itself; the model is left with the parameters that are sent.

        With the keystream of a private run, each step's sample is that of the private run.

        Raises:
            LossShapeError: the loss is not one value for each record.
        """
        model, layout, shard = self.engine.model, self.engine.layout, one.shard.present()

        def mean_gradient(step: int) -> Tensor:
            now = Position(round, step)
            sample = poisson_sample(one.mechanism.sampling_rate, len(shard.inputs), one.keystream, now)
            parts = sampled_batches(shard, sample, layout, self.views, one.keystream, now)
            sums = (_gradient_sum(model, self.loss, *layout.lay_out(*part)) for part in parts)
            return reduce(torch.add, sums).div(one.expected_batch_size)

        local = LocalSteps(self.optimizer, self.proximal_mu, self.algorithm)
        update = local.alone(model, mean_gradient, one.steps, Kept(one.own, self.control))
        kept = None if update.kept is None else update.kept.unsqueeze(0)
        return Portion([place], update.sent.unsqueeze(0), [math.inf], kept)

    def mean_gradients(
        self, clients: StackedClients[NullMechanism], positions: Tensor, norms: NDArray[np.float64], position: Position
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Average each client's gradients over its sample.

        A stack leaves out records without a finite gradient. Here no record is left out: such a mean is no number.
        """
        found, batches = clients.clip(positions, norms, position)
        owners = torch.arange(len(batches)).repeat_interleave(torch.tensor([len(batch) for batch in batches]))
        found.totals[owners.to(found.totals.device)[found.squared_norms.isnan()]] = math.nan
        divisors = found.totals.new_tensor([[one.expected_batch_size] for one in clients.trainees])
        return found.totals.div_(divisors).float(), norms


def _gradient_sum(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Sum rows' gradients by weights, shape [d]; of no rows it is zero."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.cat([torch.zeros_like(p).flatten() for p in trained])
    by_part = (rows.split(_MOST_RECORDS) for rows in (inputs, targets, weights))
    for some, theirs, weigh in zip(*by_part, strict=True):
        if not len(some):  # what an empty tensor is split into
            break
        losses = checked_losses(loss(model(some), theirs), len(some))
        gradients = torch.autograd.grad((weigh * losses).sum(), trained, materialize_grads=True)
        total += torch.cat([gradient.flatten() for gradient in gradients])
    return total


def _rows(portion: Portion, rows: Tensor) -> Portion:
    """Some clients of a portion."""
    kept = None if portion.kept is None else portion.kept[rows]
    places = [portion.places[row] for row in rows.tolist()]
    return Portion(places, portion.parameters[rows], [math.inf] * len(places), kept)


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
        raise ConfigError("privacy is on; a private run's clients train by private_client, which clips and adds noise.")
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
        arrays = _train(client, TrainingPlan(config, client.task), message, KeptInState(context.state))
        return Message(RecordDict({ARRAYS: arrays}), reply_to=message)

    return app


def _train(client: LocalClient, plan: TrainingPlan, message: Message, store: KeptInState) -> ArrayRecord:
    """The parameters after the round's local steps from the model that the server sends: not private."""
    request, config = TrainingRequest.of(message, Assignment), plan.config
    rate, number, algorithm = request.grant.sampling_rate, request.grant.round, config.algorithm_in(request.grant.round)
    client = client.with_standardised_inputs(client.standardising(request.standardise))
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


class NullBooks:
    """Takes the place of `RunAccounts` in a simulation without privacy; takes and gives what that does.

    Raises:
        ConfigError: a client is a deployed one. It has been asked for nothing but its name.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        run_id: str,
        clients: Iterable[EnrolledClient],
        *,
        resume: Checkpoint | None = None,
        folder: Path | None = None,
    ) -> None:
        self.left_out: set[str] = set()
        self.clipping_norms: dict[str, float] = {}
        self.earlier_runs = 0
        self.unreconciled: tuple[str, ...] = ()
        self.ledger_url = plan.config.ledger_url(deployed=False)  # where pages may look for the run
        self._plan, self._run_id = plan, run_id
        self._sampling_rates: dict[str, float] = {}
        self._unread: set[str] = set()  # clients that have changed since `spent` was last asked
        self._spent = PopulationSpent({})
        self._rounds = Counter(_trained_before(folder, resume.round) if folder and resume else {})
        self.admit(clients)

    @staticmethod
    def check(config: RunConfig) -> None:
        """Refuse a private run, by a `ConfigError`: these accounts charge nothing."""
        if config.privacy:
            raise ConfigError("privacy is on; a private run needs RunAccounts, which charge for it.")

    def admit(self, clients: Iterable[EnrolledClient]) -> list[ValueError]:
        """Take clients in; a `ConfigError` for a deployed one."""
        for client in clients:
            if client.public_key:
                raise ConfigError(f"privacy is off, and client {client.client_id} is deployed; leave privacy open.")
            self._unread.add(client.client_id)
            self._sampling_rates[client.client_id] = self._plan.sampling_rate(client.shard_size, client.client_id)
        return []

    def check_left(self) -> None:
        """Do nothing: no client has a budget that could be spent."""

    def spent(self) -> PopulationSpent:
        """Every client's part in the run, by client_id; its epsilon is infinite: there is no bound."""
        changed, self._unread = self._unread, set()
        self._spent = self._spent.update({client_id: self._part(client_id) for client_id in changed})
        return self._spent

    def most_charged(self) -> History:
        """Nothing: no client is charged."""
        return {}

    def _part(self, client_id: str) -> ClientSpent:
        config = self._plan.config
        return ClientSpent(
            client_id=client_id,
            epsilon=math.inf,
            delta=config.delta,
            budget_epsilon=math.inf,
            rounds=self._rounds[client_id],
            steps=self._rounds[client_id] * config.local_steps,
            steps_left=UNLIMITED,
            sampling_rate=self._sampling_rates[client_id],
            noise_multiplier=0.0,
        )

    def weight(self, client: EnrolledClient) -> float:
        """The weight of a client's update in the average: no update has noise."""
        return self._plan.weight(client.shard_size, client.answered)

    def attempts(self, server_round: int) -> Iterator[tuple[Attempt, bool]]:
        """Yield one attempt: a lost update costs no privacy, and the round is not repeated."""
        yield Attempt(self._run_id, server_round), False

    def open_to(self, attempt: Attempt, *, again: bool) -> Eligible:
        """All clients may be asked."""
        return Eligible(self.spent().places, ())

    def grant(self, attempt: Attempt, clients: Mapping[int, EnrolledClient], *, again: bool) -> dict[int, Assignment]:
        return {
            node_id: Assignment(client.client_id, attempt.round, self._sampling_rates[client.client_id])
            for node_id, client in clients.items()
        }

    def reserve(self, attempt: Attempt, clients: Iterable[EnrolledClient], *, again: bool) -> dict[str, int]:
        """Return the steps of a round, by client_id: the same for all clients."""
        return {client.client_id: self._plan.config.local_steps for client in clients}

    def order(self, client: EnrolledClient, part: int, steps: int) -> Order:
        """The training order of a simulated client, with the part of the split that it holds."""
        rate = self._sampling_rates[client.client_id]
        return Order(
            client_id=client.client_id,
            part=part,
            mechanism=NullMechanism(rate),
            expected_batch_size=rate * self._plan.shard_size(client.shard_size),
            steps=steps,
            weight=self.weight(client),
        )

    def settle(self, outcome: RoundOutcome) -> None:
        """Count the clients that trained and sent an update."""
        self._rounds.update(outcome.participants)
        self._unread.update(outcome.participants)

    def settle_late(self, asked: Message, reply: Message, key: bytes) -> None:
        """Do nothing: no charge was made, so none is to be confirmed."""

    def sign(self) -> None:
        """Do nothing: there is no ledger to sign."""

    def close(self) -> None:
        """Do nothing: there is no ledger to close."""


def _trained_before(folder: Path, last: int) -> dict[str, int]:
    """Count the rounds from 1 to `last` in which each client trained, by client_id."""
    return dict(Counter(client for result in read_history(folder).rounds[:last] for client in result.participants))
