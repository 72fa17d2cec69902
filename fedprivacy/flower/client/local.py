"""The client represented by this process: its name, shard, device, guard and randomness, and the server it trusts.

A client runs in one of two places. In a *simulation* (our in-process engine, or a Ray worker of Flower's) it holds a
part of the task's own split, answers any server, and a seed makes it repeatable. In a *deployment* (a SuperNode on a
data owner's host) the data owner's node configuration (`fedprivacy.flower.client.node`) decides the trusted server, the
task and the budget. The client reads its own folder and is limited by its own guard, and its randomness is never
seeded: a server that could choose the noise could subtract it. The client learns from its own process and node
configuration, never from the server, which of the two cases applies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from fedprivacy._support.durable import Room, size_text
from fedprivacy._support.failpoints import reach
from fedprivacy._support.native import attainable_bytes, out_of_memory
from fedprivacy.flower.client.node import EVERYTHING, Answerable, NodeSettings, Refused, is_deployed
from fedprivacy.flower.client.release import Released, most_sealed
from fedprivacy.flower.kept import KeptError, KeptFor, KeptInFolder, KeptInState, KeptStore, kept_beside, kept_task
from fedprivacy.flower.wire.messages import (
    Enrolment,
    EnrolmentRequest,
    Grant,
    MessageError,
    QuestionGrant,
    RefusalCode,
    SpendingMessage,
)
from fedprivacy.flower.wire.payloads import ArraysError, Form, blank, checked_arrays, claims_text, history_of
from fedprivacy.gradients import GradientEngine, check_on_blank, flat_parameters, trainable_parameters
from fedprivacy.gradients.models import training_bytes
from fedprivacy.gradients.per_record import RecordScores
from fedprivacy.guard import Guard, LogError
from fedprivacy.mechanisms.keystream import Keystream, Position
from fedprivacy.questions.arguments import QuestionError
from fedprivacy.questions.moments import Spread
from fedprivacy.questions.questionnaire import KINDS, Questionnaire
from fedprivacy.questions.standardise import Standardise, standardise_question, standardiser, why_unsuited
from fedprivacy.runs.settings.configuration import ConfigError, RunConfig, Value, resolve
from fedprivacy.runs.settings.device import autocast_of, choose_device
from fedprivacy.tasks import Shard, ShardSource, Task, relation_of
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.columns import Table, without_records
from fedprivacy.tasks.identity import DEFAULT_TASK, dataset_id, simulated_client_id
from fedprivacy.tasks.loader import open_task
from fedprivacy.tasks.opened import OpenedTask, TaskError
from fedprivacy.tasks.task import NO_TABLE
from fedprivacy.training.adaptive import CLIPPINGS
from fedprivacy.training.algorithms import Algorithm
from fedprivacy.training.batches import AugmentationError, Views, layout_of
from fedprivacy.training.evaluation import LocalEvaluation, NoisySums
from fedprivacy.training.local_round import Kept, personal_mask
from fedprivacy.values.events import PoissonSampledGaussian

Kind = tuple[torch.Size, torch.dtype]
"""Shape and type of a row: public."""

_KEPT_ENGINES = 64
"""Maximum number of cached gradient engines per process; bounded because the server chooses clipping and views."""

_WHATEVER_IS_ASKED = Answerable(frozenset(KINDS), frozenset({EVERYTHING}), None, 0.0)
"""Permissions of a simulated client: any question, because its records belong to the owner of the simulation."""

IN_PROCESS = "fedprivacy-in-process"
"""Key that our in-process engine sets in the node configuration of its clients."""


class Rooms(NamedTuple):
    """Room that a round holds on the disk for what it will write; None: it writes nothing there."""

    sealed: Room | None
    own: Room | None


@dataclass(frozen=True, slots=True)
class LocalClient:
    """One client, as its own process sees it.

    Attributes:
        guard: its own book, which charges before a record is read and knows what was sealed; None in a simulation,
            where the ledger of the run is the only book.
        key: the key that signs receipts, with which the SuperNode also authenticates; None in a simulation.
        source: the place where the task finds its records.
        answerable: the questions that may be asked about them.
        seed: the simulation's seed; None: secret randomness.
        num_partitions: number of parts into which the simulation splits the records; 0 in a deployment.
        kept: storage of its own vectors from round to round; None: the simulation's engine stores them.
        autocast: type in which it computes activations; None: float32.
    """

    client_id: str
    task: OpenedTask
    shard: Shard
    guard: Guard | None
    key: EllipticCurvePrivateKey | None
    source: ShardSource
    answerable: Answerable
    seed: int | None
    num_partitions: int
    kept: KeptStore | None = None
    autocast: torch.dtype | None = None

    def check_promise(self, grant: SpendingMessage) -> None:
        """Refuse, by a `MessageError`, a grant for another relation or unit of privacy than this client's own task."""
        relation, unit = relation_of(self.task), str(self.task.unit)
        if grant.relation is not relation:
            raise MessageError(f"The grant is for {grant.relation}; with what this task makes public it is {relation}.")
        if grant.unit != unit:
            raise MessageError(f"The grant is for the unit of privacy {grant.unit!r:.60}; this task's is '{unit}'.")

    def public_facts(self) -> Enrolment:
        """Return the client's own facts; with what its own guard holds of grants, where it has one.

        A size is disclosed under the zero-out relation alone: the guard holds the account to it from now on. An account
        that promises something else states nothing: its charges would be added to those of another promise.
        """
        if self.guard is not None:
            hold = self.guard.promise if self.task.shard_sizes_public else self.guard.check
            hold(relation_of(self.task))
        runs = self.guard.by_run() if self.guard is not None else {}
        charged = ((run, event, steps) for run, events in runs.items() for event, steps in events.items())
        claims = {(run, event): steps for run, event, steps in charged if isinstance(event, PoissonSampledGaussian)}
        shard_size = len(self.shard) if self.task.shard_sizes_public else 0
        return Enrolment(self.client_id, shard_size, self.num_partitions, claims_text(claims) if claims else "")

    def table(self, asked: Questionnaire) -> Table:
        """Its records by column, for questions that may be asked.

        Raises:
            Refused: the task has no table, or none with such columns, of types that the questions can be asked of.
        """
        if not self.task.offers("table"):
            raise Refused(RefusalCode.QUESTION_NOT_ALLOWED, NO_TABLE.format(name=self.task.name))
        table = _table(self.task, self.source)
        if unknown := sorted(asked.columns - table.columns.keys()):
            raise Refused(RefusalCode.QUESTION_NOT_ALLOWED, f"The table has no column {', '.join(unknown)}.")
        try:
            for question in asked.questions:
                question.totals(without_records(table))  # before the charge: types are public
        except TableError as error:
            raise Refused(RefusalCode.QUESTION_NOT_ALLOWED, str(error)) from error
        return table

    def standardising(self, numbers: object) -> Standardise | None:
        """Return the standardisation of the client's inputs; None: the task has none. No record is read.

        Args:
            numbers: mean and scale of each, as the server sends them: public, whatever they are. None: those of the
                public bounds.

        Raises:
            MessageError: they are something else, or the shard has no such inputs.
        """
        try:
            question = standardise_question(self.task)
        except QuestionError as error:
            raise MessageError(str(error)) from error
        if question is None:
            return None
        if why := why_unsuited(self.shard.blank[0], question.reads):
            raise MessageError(f"The task standardises its inputs, and {why}.")
        return _standardise(question, numbers)

    def with_standardised_inputs(self, standardise: Standardise | None) -> LocalClient:
        """The same client, with the inputs that its task's model sees."""
        if standardise is None:
            return self
        inputs = standardise.to(self.shard.inputs.device)(self.shard.inputs)
        return replace(self, shard=self.shard.holding(inputs, self.shard.targets))

    def released_before(self, grant: Grant | QuestionGrant) -> Released | None:
        """Return the sealed release of a grant; it is charged already, so sending it again costs nothing.

        Raises the errors of `Guard.sealed_update`.
        """
        if self.guard is None:
            return None
        sealed = self.guard.sealed_update(grant.charged_as, run_key=grant.server_key)
        return None if sealed is None else Released.from_bytes(sealed)

    def check_memory(self, engine: GradientEngine) -> None:
        """Compare what this process may hold of the host's memory with what a round takes, before its charge.

        Raises:
            Refused: the round cannot be trained, and Linux would end the process. Nothing was charged.
        """
        if self.guard is None or engine.prepared or self.shard.inputs.device.type != "cpu":
            return
        needed, attainable = training_bytes(engine.model), attainable_bytes()
        if attainable is not None and attainable < needed:
            raise Refused(
                RefusalCode.NO_MEMORY,
                f"A round on this model takes {size_text(needed)} of memory at least, and this process may hold "
                f"{size_text(attainable)}. Nothing was charged. Give its service more memory (MemoryMax), or agree on "
                "a smaller model.",
            )

    @contextmanager
    def room_for_round(self, grant: Grant, model: nn.Module) -> Iterator[Rooms]:
        """Hold room on the data owner's disk for all that a round writes there, from before its charge.

        Raises:
            NoRoomError, LogError: as `Guard.room` does. Nothing was charged.
            Refused: there is no room for the vector that the client keeps. Nothing was charged.
        """
        parameters = trainable_parameters(model)
        with ExitStack() as held:
            own = None
            if isinstance(self.kept, KeptInFolder) and grant.local_algorithm.keeps:
                size = sum(parameter.nbytes for parameter in parameters.values())
                try:
                    own = held.enter_context(self.kept.room(size))
                except (OSError, KeptError) as error:
                    raise Refused(RefusalCode.NO_ROOM, str(error)) from error
            yield Rooms(self._hold(held, parameters), own)

    @contextmanager
    def room_for_answers(self, asked: Questionnaire) -> Iterator[Rooms]:
        """Hold room on the data owner's disk for answers, from before their charge. Raises what `Guard.room` does."""
        with ExitStack() as held:
            yield Rooms(self._hold(held, blank(asked)), None)

    def _hold(self, held: ExitStack, arrays: Mapping[str, NDArray[Any] | Tensor]) -> Room | None:
        return None if self.guard is None else held.enter_context(self.guard.room(most_sealed(arrays)))

    def charge(self, grant: Grant | QuestionGrant) -> None:
        """Charge a grant to the client's own guard, if it has one, durably. Raises what `Guard.charge` does."""
        if self.guard is not None:
            self.guard.charge(
                grant.charged_as,
                grant.event,
                grant.steps,
                run_key=grant.server_key,
                elsewhere=history_of(grant.charged),
                of_questions=self.answerable.budget,  # of no account where a run trains
            )
            reach("client.charged")

    def seal(self, grant: Grant | QuestionGrant, released: Released, room: Rooms) -> None:
        """Keep what is about to leave. What cannot be kept does not leave: records were read, so the charge stands."""
        if self.guard is None:
            return
        try:
            self.guard.seal(grant.charged_as, released.to_bytes(), room.sealed)
        except LogError as error:
            raise RuntimeError("The update was trained and cannot be sealed.") from error
        reach("client.sealed")

    def keystream(self, grant: Grant | QuestionGrant) -> Keystream:
        """Its randomness for one round: fresh and kept nowhere, unless a simulation is seeded."""
        if self.seed is None:
            return Keystream.secret()
        return Keystream.from_seed(self.seed, self.dataset_id, grant.earlier_runs, grant.attempt)

    def before(self, grant: Grant) -> Tensor | None:
        """Return the vector kept in its last round under this grant's run and algorithm, shape [d]; None: nothing yet.

        Raises:
            Refused: the file is damaged, or there is no room for the round's new vector. No record has been read.
        """
        if self.kept is None or not grant.local_algorithm.keeps:
            return None
        try:
            return self.kept.load(self._kept_for(grant))
        except KeptError as error:
            raise Refused(RefusalCode.GUARD_UNUSABLE, str(error)) from error

    def keep(self, grant: Grant, own: Tensor | None, room: Rooms) -> None:
        """Keep what a round has trained. What cannot be kept stops the round: the charge stands."""
        if self.kept is None or own is None:
            return
        try:
            self.kept.keep(self._kept_for(grant), own, room.own)
        except (OSError, KeptError) as error:
            raise RuntimeError("The client's own part of the round was trained and cannot be kept.") from error
        reach("client.kept")

    def _kept_for(self, grant: Grant) -> KeptFor:
        return KeptFor(grant.run_id, grant.algorithm, grant.round, kept_task(self.task))

    @property
    def dataset_id(self) -> str:
        """The data set that its budget belongs to."""
        return dataset_id(self.task, self.client_id)

    def engine(self, clipping: str, multiplicity: int = 0) -> GradientEngine:
        """Computes the clipped sums of its gradients, each of so many views of a record.

        Clients of one process share it: load parameters before use.
        """
        return engine_of(self.task, self.shard.inputs.device, clipping, max(multiplicity, 1), self.autocast)

    def views(self, multiplicity: int) -> Views | None:
        """Return the maker of so many views of its records; None: they are trained on unchanged. No record is read.

        Raises:
            MessageError: the task has no augmentation, or one that does not suit such records.
        """
        if multiplicity == 0:
            return None
        inputs, _ = self.shard.blank
        try:
            return views_of(self.task, multiplicity, inputs.device, (inputs.shape[1:], inputs.dtype))
        except (TaskError, AugmentationError) as error:
            raise MessageError(f"The grant is for views of records. {error}") from error

    def record_scores(self, engine: GradientEngine, algorithm: Algorithm, before: Kept) -> RecordScores:
        """Takes its records' scores under the model that it uses: the engine's, or one of its own; shared as that is.

        Raises:
            MessageError: the scores cannot be taken of made-up records. No record has been read.
        """
        kinds = ((rows.shape[1:], rows.dtype) for rows in self.shard.blank)
        try:
            measured = _record_scores(self.task, self.shard.inputs.device, engine.threads, *kinds)
        except Exception as error:
            raise MessageError("The grant evaluates, and the scores of this client's task cannot be taken.") from error
        shared = flat_parameters(engine.model)
        own = shared if before.own is None else before.own.to(shared.device)
        used = algorithm.model(shared, own, personal_mask(algorithm, engine.model))
        vector_to_parameters(used, [p for p in measured.model.parameters() if p.requires_grad])
        return measured

    def release_evaluation(self, grant: Grant, measured: RecordScores | None, keystream: Keystream) -> NoisySums | None:
        """Release the noisy sums of the records' scores in a grant's last step; None: no evaluation was granted."""
        if measured is None:
            return None
        evaluation = LocalEvaluation(grant.event, list(self.task.scores().values()))
        return evaluation.release(measured, self.shard, keystream, Position(grant.round, grant.steps))


def client_to_enrol(
    message: Message, context: Context, task: Task | None = None, config: RunConfig | None = None
) -> LocalClient:
    """Return the client that a server asks to enrol; in a deployment it answers only the data owner's trusted server.

    Args:
        message: the request, signed in a deployment.
        context: Flower's.
        task: that the app brings; None: the one that the run names, if the data owner allows it.
        config: of the run; None: the run-config in the context.

    Raises:
        Refused: the server is another one, or the node configuration does not allow what the run names; the device is
            not there, or the shard cannot be read.
        LogError: the guard cannot be used.
    """
    owner = _owner(context)
    if owner is not None:
        try:
            owner.check_enrolment(EnrolmentRequest.of(message), context.run_id)
        except MessageError as error:
            raise Refused(RefusalCode.ENROLMENT_INVALID, str(error)) from error
    return _open_client(owner, context, task, config)


def client_for(
    grant: Grant | QuestionGrant, context: Context, task: Task | None = None, config: RunConfig | None = None
) -> LocalClient:
    """The client that a grant is for, once the grant is held against what the data owner decided; else as above.

    Raises:
        MessageError: the data owner does not accept the grant. No record has been read.
    """
    owner = _owner(context)
    if owner is not None:
        owner.check_grant(grant)
    return _open_client(owner, context, task, config)


def simulated_client(context: Context, task: Task | None, config: RunConfig) -> LocalClient:
    """The client of a simulation alone, which no data owner's node configuration governs.

    Raises:
        Refused: this process is in a deployment. Nothing has been read.
    """
    if _owner(context) is not None:
        raise Refused(RefusalCode.GRANT_INVALID, "This app trains without privacy; it is for simulations alone.")
    return _open_client(None, context, task, config)


def _owner(context: Context) -> NodeSettings | None:
    """Return the data owner's settings; None in a simulation: in our in-process engine, or in an actor of Ray.

    It fails closed. One key of a deployment in the node configuration, and every other must be there; without any, a
    part of a split is served only where an engine of simulations runs this very call. That the task's own code, say,
    has started Ray in a SuperNode's process is no such thing: it is no actor then.
    """
    node = context.node_config
    simulated = "partition-id" in node and (IN_PROCESS in node or _in_ray_actor())
    return None if simulated and not is_deployed(node) else NodeSettings.of(node)


def _in_ray_actor() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def _open_client(
    owner: NodeSettings | None, context: Context, task: Task | None, config: RunConfig | None
) -> LocalClient:
    if owner is None:
        settings = config or _resolve_once(tuple(context.run_config.items()), task)
        node = context.node_config
        client = part_of(
            open_task(settings.task, task), settings, int(node["partition-id"]), int(node["num-partitions"])
        )
        return replace(client, kept=KeptInState(context.state))
    named = config.public() if config else context.run_config
    if named.get("seed") not in (None, ""):
        raise Refused(RefusalCode.SEED_IN_DEPLOYMENT, "seed is set: whoever knows it can subtract the noise.")
    return _deployed_client(owner.task(named.get("task") or DEFAULT_TASK, task), owner)


def part_of(task: OpenedTask, settings: RunConfig, part: int, parts: int) -> LocalClient:
    """The simulated client that holds one of so many parts of the task's split.

    Raises:
        Refused: the device is not there, or the task could not read the shard.
        Exception: what model or loss raise on made-up records of the shard's kind.
    """
    source = ShardSource(partition_id=part, num_partitions=parts)
    shard = works_on(task, simulated_shard(task, part, parts, settings.device))
    name = simulated_client_id(part, parts)
    of_run = _WHATEVER_IS_ASKED, settings.seed, parts
    return LocalClient(name, task, shard, None, None, source, *of_run, autocast=autocast_of(settings.autocast))


@lru_cache(maxsize=16)
def _resolve_once(run_config: tuple[tuple[str, Value], ...], task: Task | None) -> RunConfig:
    return resolve(dict(run_config), task)


def _deployed_client(task: OpenedTask, settings: NodeSettings) -> LocalClient:
    try:
        device = choose_device(settings.device)
    except ConfigError as error:
        raise Refused(RefusalCode.NODE_CONFIG_INVALID, f"--node-config: {error}") from error
    shard = works_on(task, own_shard(task, settings.folder, device))
    guard = Guard(settings.guard, settings.budget, settings.filter, usual=settings.usual_filter, unit=task.unit)
    source = ShardSource(folder=settings.folder)
    kept = KeptInFolder(kept_beside(settings.guard))
    own = settings.client_id, task, shard, guard, settings.key, source, settings.answerable
    return LocalClient(*own, None, 0, kept, autocast_of(settings.autocast))


def simulated_shard(task: OpenedTask, partition_id: int, num_partitions: int, device: str) -> Shard:
    """A part of the task's split, kept while there is memory: it must not be made again with every message.

    Raises:
        Refused: the task could not read it.
    """
    source = ShardSource(partition_id=partition_id, num_partitions=num_partitions)
    opened = task, source, choose_device(device, partition_id)
    try:
        return _kept_part(*opened)
    except Refused as error:
        if not out_of_memory(error.__cause__):
            raise
    _kept_part.cache_clear()  # others' parts, which this process can open again
    return _kept_part(*opened)


@cache
def _kept_part(task: OpenedTask, source: ShardSource, device: torch.device) -> Shard:
    return _read(task, source, device)


@lru_cache(maxsize=1)
def own_shard(task: OpenedTask, folder: Path, device: torch.device) -> Shard:
    """A data owner's own, kept for the life of the process. Raises as `simulated_shard` does."""
    return _read(task, ShardSource(folder=folder), device)


def _standardise(question: Spread, numbers: object) -> Standardise:
    """Return the standardisation by a server's numbers; None: by the public bounds."""
    if numbers is None:
        return standardiser(question)
    form = Form((len(question.of),), np.dtype(np.float64))
    try:
        received = checked_arrays(numbers, {"mean": form, "scale": form})
    except ArraysError as error:
        raise MessageError(f"The numbers to standardise by are not this task's ({error}).") from error
    if not (received["scale"] > 0.0).all():
        raise MessageError("A scale to standardise by is not above zero.")
    low, high = ([getattr(of, name) for of in question.of] for name in ("low", "high"))
    return Standardise(low, high, received["mean"].tolist(), received["scale"].tolist())


@lru_cache(maxsize=4096)
def _table(task: OpenedTask, source: ShardSource) -> Table:
    """A client's records by column, kept for the life of the process.

    Raises:
        Refused: the task has no table, or could not read it.
    """
    try:
        return task.table(source)
    except Exception as error:
        raise Refused(RefusalCode.CLIENT_FAILED, "The task could not read this client's table.") from error


def _read(task: OpenedTask, source: ShardSource, device: torch.device) -> Shard:
    """The shard; that it could not be read is said in one way, whatever went wrong."""
    try:
        return task.shard(source).to(device)
    except Exception as error:
        raise Refused(RefusalCode.CLIENT_FAILED, "The task could not read this client's shard.") from error


def works_on(task: OpenedTask, shard: Shard) -> Shard:
    """The shard, once the task has worked on made-up records of its kind: what fails later is one record's fault.

    Raises:
        LossShapeError, UnsupportedModelError: it cannot be trained on such records.
        Exception: what model or loss raise on them.
    """
    _check_once(task, shard.inputs.device, *((rows.shape[1:], rows.dtype) for rows in shard.blank))
    return shard


@cache
def _check_once(task: OpenedTask, device: torch.device, *kinds: Kind) -> None:
    """Check on no rows of the kinds that inputs and targets are: their shape and type are public."""
    check_on_blank(task.original.model().to(device), task.loss, *_blank(device, *kinds))


@cache
def _record_scores(task: OpenedTask, device: torch.device, threads: int, *kinds: Kind) -> RecordScores:
    """Kept for the life of the process, with a model of its own: that of the engine may be a server's by now."""
    measures = [score.measure for score in task.scores().values()]
    measured = RecordScores(
        task.original.model().to(device),
        task.loss,
        measures,
        _blank(device, *kinds),
        threads=threads,
        rows=task.unit.rows,
    )
    task.check_scores(*measured.example)
    return measured


def _blank(device: torch.device, inputs: Kind, targets: Kind) -> tuple[Tensor, Tensor]:
    """No rows of these kinds."""
    (shape, dtype), (target_shape, target_dtype) = inputs, targets
    blank = partial(torch.empty, device=device)
    return blank(0, *shape, dtype=dtype), blank(0, *target_shape, dtype=target_dtype)


@lru_cache(maxsize=_KEPT_ENGINES)
def views_of(task: OpenedTask, multiplicity: int, device: torch.device, kind: Kind) -> Views:
    """Return the maker of augmented views for records of this kind, cached as engines are.

    Raises:
        TaskError: the task has no augmentation.
        AugmentationError: the augmentation does not suit such records.
    """
    return Views(task.needed_augmentation(), multiplicity, _blank(device, kind, kind)[0])


@lru_cache(maxsize=_KEPT_ENGINES)
def engine_of(
    task: OpenedTask, device: torch.device, clipping: str, views: int, autocast: torch.dtype | None
) -> GradientEngine:
    """The engine of a task's model, kept for other rounds: to choose how it computes takes longer than a step."""
    clips, layout = CLIPPINGS[clipping](), layout_of(task, views)
    return GradientEngine(task.original.model().to(device), task.loss, clips, layout=layout, autocast=autocast)
