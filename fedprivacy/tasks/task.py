"""The federated task: a model, a loss, a client's shard, and the server's public evaluation."""

from __future__ import annotations

import math
import secrets
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.tasks.cells import TableError
from fedprivacy.tasks.columns import Table
from fedprivacy.values.events import NeighbouringRelation
from fedprivacy.values.metrics import bare_name
from fedprivacy.values.unit import Unit, checked_persons, first_rows, missing, missing_target

_Joined = tuple[Tensor, Tensor, Tensor | None, int]
"""Inputs and targets [persons, m, ...], mask of the null persons, and m."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The training settings that suit a task: the defaults of a run's configuration.

    They are public and must be chosen without looking at the clients' records.

    >>> import fedprivacy as fp
    >>> fp.Recipe(rounds=20, learning_rate=2.0).clipping_norm
    0.5

    Attributes:
        clients: number of clients that a simulation has or a deployment awaits.
        rounds: number of rounds.
        local_steps: local steps in each round.
        sampling_rate: q, probability with which a record joins a local step.
        clipping_norm: C, bound on the norm of one record's gradient.
        optimizer: sgd, adam or adamw.
        learning_rate: step size of the local steps.
        momentum: momentum of the local steps, in [0, 1); for sgd.
        weight_decay: weight decay of the local steps; for sgd and adamw.
        ema_decay: decay of the average of the global models, which is evaluated and kept, in [0, 1); 0: no averaging.
        epsilon: privacy budget of each client.
        delta: delta of that budget.
    """

    clients: int = 10
    rounds: int = 40
    local_steps: int = 1
    sampling_rate: float = 0.5
    clipping_norm: float = 0.5
    optimizer: str = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    ema_decay: float = 0.0
    epsilon: float = 3.0
    delta: float = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSource:
    """The place of a client's shard.

    >>> import fedprivacy as fp
    >>> fp.ShardSource(partition_id=0, num_partitions=10).folder is None  # a simulated client
    True

    Attributes:
        folder: the client's own data folder, in a deployment; None in a simulation.
        partition_id: number of this client's part of the task's split, in a simulation; None in a deployment.
        num_partitions: number of parts of the split, in a simulation.
    """

    folder: Path | None = None
    partition_id: int | None = None
    num_partitions: int | None = None


@dataclass(frozen=True, slots=True, init=False)
class Shard:
    """A client's data: one row for each record, or some rows for each person, who is then the record.

    >>> import fedprivacy as fp, torch
    >>> shard = fp.Shard(torch.tensor([[0.5], [torch.nan], [2.0]]), torch.tensor([0, 1, 1]))
    >>> shard.null, shard.present().targets
    (tensor([False,  True, False]), tensor([0, 1]))

    A row can be a *null record*, which the zero-out relation puts in a record's place. It counts among the rows, whose
    number may be public. Its values are dropped (`present`) before any model, loss, score or view is called, so that it
    contributes exactly zero, whatever a model does with missing values.

    With `persons`, the record is a person with at most m rows. A person's gradient is the mean of the rows' gradients
    (or their sum, see `Task`), clipped once; a person joins a step or does not; all that counts records counts persons.

    >>> visits = fp.Shard(torch.rand(5, 3), torch.arange(5), persons=["ann", "bob", "ann", "ann", "eve"], most_rows=2)
    >>> len(visits), visits.rows, visits.inputs.shape
    (3, 2, torch.Size([3, 2, 3]))

    Attributes:
        inputs: shape [rows, ...]; of persons [persons, m, ...], with the first row again where a person has fewer.
        targets: shape [rows, ...]; of persons [persons, m, ...], missing (`values.unit.missing`) there.
        null: mask of the null records, bool, shape [rows], or [persons]; None: not stated.
        rows: m, the most rows of a record; 1: a row is a record.
        by_person: whether a record is a person, maybe with one row.
    """

    inputs: Tensor
    targets: Tensor
    null: Tensor | None
    rows: int
    by_person: bool

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        null: Tensor | bool | None = None,
        *,
        persons: Sequence[Hashable] | Tensor | None = None,
        most_rows: int | None = None,
    ) -> None:
        """State the rows, mark the null ones, and say whose they are.

        Args:
            inputs: shape [rows, ...].
            targets: shape [rows, ...].
            null: mask of the null rows, bool, shape [rows]; False: none is. None: those whose inputs hold a NaN. Whole
                numbers have no NaN: with public shard sizes a task must state the null rows. If the model itself
                handles NaN, state `null`, too: then NaN is a value like any other. Null rows of a person are left out;
                a person without another row is a null record.
            persons: whose each row is, one text or whole number for each; a row without one (None, NaN, "") is a person
                by itself. None: each row is a record of its own.
            most_rows: m, the most rows of a person that count, public: the first m, in the order given.

        Raises:
            TypeError: one of them is no tensor, or `null` is not a tensor of bool.
            ValueError: their lengths differ; only one of `persons` and `most_rows` is given; or a person is a
                floating-point number.
        """
        for name, rows in (("inputs", inputs), ("targets", targets)):
            if not isinstance(rows, Tensor):
                kind = type(rows).__name__
                raise TypeError(f"The shard's {name} are a {kind}; give a tensor, for example torch.as_tensor({name}).")
        if len(inputs) != len(targets):
            raise ValueError("The shard's inputs and targets differ in length; give one target for each record.")
        unreadable = _null_rows(inputs, null)
        if persons is None and most_rows is None:
            self._set(inputs, targets, unreadable, 1, False)
        else:
            self._set(*_rows_of_persons(inputs, targets, unreadable, persons, most_rows), True)

    def _set(self, *values: object) -> None:
        for attribute, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, attribute.name, value)

    @property
    def blank(self) -> tuple[Tensor, Tensor]:
        """No rows of this shard's kind, as a model and a loss see them: inputs and targets [0, ...]."""
        inputs, targets = self.inputs[:0], self.targets[:0]
        return (inputs, targets) if self.rows == 1 else (inputs.flatten(0, 1), targets.flatten(0, 1))

    def __len__(self) -> int:
        """The number of rows, null ones included: it is disclosed where shard sizes are public."""
        return len(self.inputs) if self.null is None else len(self.null)

    def present(self) -> Shard:
        """Return the shard without the values of its null rows; its length, which may be public, stays.

        Its inputs and targets have shape [records, ...]: fewer rows than `null`, if any row is null.
        """
        if self.null is None or len(self.inputs) < len(self.null) or not bool(self.null.any()):
            return self
        kept = ~self.null
        return self.holding(self.inputs[kept], self.targets[kept.to(self.targets.device)])

    def holding(self, inputs: Tensor, targets: Tensor) -> Shard:
        """Return the shard with other values in its records, in the same order; null ones stay null."""
        other = object.__new__(Shard)
        other._set(inputs, targets, self.null, self.rows, self.by_person)
        return other

    def of_records(self, inputs: Tensor, targets: Tensor, null: Tensor | None = None) -> Shard:
        """Return a shard of other records of this kind, with a mask of the null ones; None: none is null."""
        other = object.__new__(Shard)
        other._set(inputs, targets, _null_rows(inputs, False if null is None else null), self.rows, self.by_person)
        return other

    def by_row(self) -> Shard:
        """Return the rows that are there, each as a record of its own: what a model sees of these persons."""
        if self.rows == 1:
            return self
        there = ~missing(self.targets)
        return Shard(self.inputs[there.to(self.inputs.device)], self.targets[there], null=False)

    def to(self, device: torch.device) -> Shard:
        """Move the shard to `device`."""
        return self.holding(self.inputs.to(device), self.targets.to(device))


def _rows_of_persons(
    inputs: Tensor,
    targets: Tensor,
    null: Tensor | None,
    persons: Sequence[Hashable] | Tensor | None,
    most_rows: int | None,
) -> _Joined:
    """Join each person's first `most_rows` readable rows; persons come in the order of their first row.

    A person's part depends on that person's rows alone. Of m = 1, the person is the row, without a further axis.

    Args:
        inputs, targets: shape [rows, ...].
        null: mask of the rows that cannot be read, bool, shape [rows]; None: not stated.
        persons: whose each row is.
        most_rows: m.

    Raises:
        ValueError: the persons are not as many as the rows, m is out of range or open, or targets have no value that
            can mark a missing row.
    """
    numbers, most_rows = checked_persons(persons, most_rows, len(inputs))
    if not targets.is_floating_point():
        if targets.dtype is torch.bool or targets.is_complex():
            raise ValueError(f"targets are {targets.dtype}; give persons' targets as whole numbers or floats.")
        targets = targets.long()
    count, firsts = first_rows(numbers, most_rows, None if null is None else null.tolist())
    joined = inputs.new_zeros(count, most_rows, *inputs.shape[1:])  # with copies of the first where one is missing
    aimed = targets.new_full((count, most_rows, *targets.shape[1:]), missing_target(targets))
    nobody = None if null is None else torch.ones(count, dtype=torch.bool, device=inputs.device)
    if firsts:
        person, place, row = torch.tensor(firsts, device=inputs.device).unbind(1)
        joined[person[place == 0]] = inputs[row[place == 0]].unsqueeze(1)
        joined[person, place] = inputs[row]
        if nobody is not None:
            nobody[person] = False
        person, place, row = (numbers.to(targets.device) for numbers in (person, place, row))
        aimed[person, place] = targets[row]
    return (joined, aimed, nobody, most_rows) if most_rows > 1 else (joined[:, 0], aimed[:, 0], nobody, 1)


def _null_rows(inputs: Tensor, null: Tensor | bool | None) -> Tensor | None:
    """Mark the null rows, bool, shape [rows]; None if they are not stated and cannot be read off the inputs."""
    if null is None:
        return holding_nan(inputs) if inputs.is_floating_point() else None
    if isinstance(null, bool):
        return torch.full((len(inputs),), null, device=inputs.device)
    if not isinstance(null, Tensor) or null.dtype is not torch.bool:
        kind = null.dtype if isinstance(null, Tensor) else f"a {type(null).__name__}"
        raise TypeError(f"The shard's null is {kind}; give a tensor of torch.bool, or False where no row is null.")
    if null.shape != (len(inputs),):
        raise ValueError(f"The shard's null has shape {list(null.shape)}; give one value for each row.")
    return null.to(inputs.device)


def check_null(shard: Shard, relation: NeighbouringRelation) -> None:
    """Refuse a shard whose null rows are not stated, if the relation is zero-out.

    Raises:
        ValueError: null rows are not stated; the error says what to write.
    """
    if shard.null is None and relation is NeighbouringRelation.ZERO_OUT:
        raise ValueError(
            f"its inputs are {shard.inputs.dtype}, which has no NaN, and the number of records is public: say which "
            "rows stand for records that cannot be read, fedprivacy.Shard(inputs, targets, null=unreadable), or "
            "null=False if none does"
        )


def holding_nan(inputs: Tensor) -> Tensor:
    """Mark the rows of inputs, shape [rows, ...], that hold a NaN, bool, shape [rows]."""
    return inputs.isnan().unsqueeze(-1).flatten(1).any(1)


@dataclass(frozen=True, slots=True)
class Score:
    """A figure of each record, of which local evaluation may release a noisy mean.

    >>> import fedprivacy as fp
    >>> error = fp.Score(lambda outputs, targets: (outputs[:, 0] - targets).abs(), 0.0, 10.0)

    Attributes:
        measure: function (outputs [batch, ...], targets [batch, ...]), on the CPU -> one figure for each record, shape
            [batch], which depends on no other record.
        least, most: public bounds to which each figure is clipped. Wider bounds need more noise.

    Raises:
        ValueError: the bounds are not two numbers a finite distance apart, the larger one last.
    """

    measure: Callable[[Tensor, Tensor], Tensor]
    least: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        if not (self.least < self.most and math.isfinite(self.most - self.least)):
            raise ValueError(f"a score's bounds are {self.least} and {self.most}; give two numbers, the larger last.")


NO_TABLE = (
    "task {name} offers no table, which questions are asked of; give it a method table(self, source) that returns a "
    "fedprivacy.Table, for example fp.read_table(...)."
)
"""Error message for a task without `table`."""

LARGEST_LOSS = 5.0
"""Bound to which losses are clipped before local evaluation releases their mean, unless a task chooses another."""


def is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for each record whose largest output is that of its class, else 0, shape [batch].

    Raises:
        ValueError: there is not one output for each class, or the targets are not classes.
    """
    if outputs.dim() != 2 or outputs.shape[1] < 2 or targets.dim() != 1 or targets.is_floating_point():
        shapes = f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)}, {targets.dtype}"
        raise ValueError(f"accuracy is of classes, and there are {shapes}; give the task scores of its own")
    return (outputs.argmax(1) == targets).double()


@runtime_checkable
class Task(Protocol):
    """One learning problem, the same code on server and clients; a base class and a protocol.

    A subclass writes `model` and `shard`; everything else has a default. Any other class with all of these attributes
    and methods (`augmentation`, `scores`, `table` and `held_out` are optional) is a task as well.

    >>> import fedprivacy as fp, torch
    >>> class Coins(fp.Task):
    ...     recipe = fp.Recipe(rounds=2, delta=1e-3)
    ...
    ...     def model(self):
    ...         return torch.nn.Linear(2, 2)
    ...
    ...     def shard(self, source):  # a simulated client makes its records up; a deployed one would read source.folder
    ...         generator = torch.Generator().manual_seed(source.partition_id)
    ...         sides = torch.randint(2, (40,), generator=generator)
    ...         return fp.Shard(torch.randn(40, 2, generator=generator) + sides[:, None], sides)
    >>> Coins().name, len(Coins().shard(fp.ShardSource(partition_id=0, num_partitions=3)))
    ('coins', 40)

    Attributes:
        name: short name for people. Default: the class's, in small letters.
        dataset: name of the records: tasks on the same records share it, so that their privacy losses add up. Default:
            the class's name, in small letters. A second task on the same records must be given the first one's.
        metric: key of the figure in `evaluate`'s result that plots and tables show first.
        recipe: default training settings.
        shard_sizes_public: whether the number of records of each client is public. If so, clients disclose it, it
            weighs their updates, and the guarantee is for the zero-out relation: it protects the content of a record,
            not its presence. If not, every client has the same weight and `nominal_shard_size` replaces the number.
            Default: public.
        nominal_shard_size: a public guess of a shard's size, for tasks whose shard sizes are private.
        unit: the unit of privacy, such as `fp.Unit("patient", 8)`: the shard's records are then persons with at most
            so many rows. Budgets belong to it: a run with another unit on the same dataset is refused. Default: a row.
        rows_per_step: number of a person's rows that are drawn anew for each step, for persons with many rows; a step
            takes the time of so many rows. None: all.
        person_gradient: "mean" of the rows' gradients, so that persons count alike; or "sum", over the most rows that
            a step can have, so that rows do. Either is clipped once, as a whole.
        standardise: a question, `fp.ask.mean_and_scale({"age": (0, 120), ...})`, that is asked once on a ledger, before
            the first round, and charged to the same account: the inputs, of which the first are these columns in this
            order, are moved to their bounds, and standardised by its private answer. Where shard sizes are private, the
            answer's count of a client's records weighs its updates. None: inputs stay as they are.
        augmentation: random views of the model's inputs, for runs with an augmentation multiplicity. None: none.
        allow_null: whether more than half of the records may count for nothing, because they are null rows or have no
            gradient; otherwise a simulation, the doctor and `deploy check` refuse them. A deployed client never does:
            its answers must not depend on what its records hold.
    """

    name: str = ""
    dataset: str = ""
    metric: str = "accuracy"
    recipe: Recipe = Recipe()
    shard_sizes_public: bool = True
    nominal_shard_size: int | None = None
    unit: Unit = Unit()
    rows_per_step: int | None = None
    person_gradient: str = "mean"
    standardise: Any = None
    augmentation: Augmentation | None = None
    allow_null: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.name or cls.__name__.lower()
        cls.dataset = cls.dataset or cls.__name__.lower()

    def __hash__(self) -> int:
        """Return the hash of the object: a task is an object with an identity, under which loaded state is cached."""
        return object.__hash__(self)

    @abstractmethod
    def model(self) -> nn.Module:
        """Make a new model. Its layers must not mix records (no BatchNorm).

        It is trained in the modes in which it comes: what this returns in `eval()`, such as a pretrained part with
        dropout and BatchNorm, stays so.
        """
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute one loss for each record, shape [batch]. Default: cross-entropy of classes."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    @abstractmethod
    def shard(self, source: ShardSource) -> Shard:
        """Read the client's records.

        A row may depend on public constants and on its own record, on nothing else. Failure, and the types and shapes
        of the rows, must not depend on any record's value: the server notices a client that does not answer, and
        nothing is charged for it. An unreadable record becomes a null row, see `Shard`. With private shard sizes it
        may be left out instead; with public ones that would show in the size.

        Raises:
            Exception: the source is missing or is not this task's. For any error, the same code is sent to the server.
        """
        ...

    def table(self, source: ShardSource) -> Table:
        """Read the client's records by column, for questions. Default: none.

        Each row is one record of the shard, the same unit of privacy. A record that the shard leaves out, or that is
        null there, is a row all the same, with the cells that can be read. As for `shard`, failure and the names and
        types of the columns must not depend on any record's value.

        Raises:
            TableError: the task offers no table.
            Exception: the source is missing or is not this task's, as with `shard`.
        """
        raise TableError(NO_TABLE.format(name=self.name))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Measure the model on the *server's public* records; called after every round. Default: no metrics."""
        return {}

    def held_out(self, source: ShardSource) -> Shard:
        """Read records of a simulated client that are declared public: never in its `shard`, and nobody's private
        record.

        With them a simulation measures the model for each client, not only on average; see `scores`. Default: none.

        Raises:
            LookupError: the task holds no records out.
        """
        raise LookupError(f"task {self.name} holds no records out; give it a method held_out(self, source)")

    def scores(self) -> Mapping[str, Score]:
        """Return the scores of evaluation by client, by name: public, chosen without looking at the records.

        Default: the loss, up to 5, and accuracy if that is the task's metric, on whichever records (`each_accuracy`).
        """
        scores = {"loss": Score(self.loss, 0.0, LARGEST_LOSS)}
        return scores | ({"accuracy": Score(is_right)} if bare_name(self.metric) == "accuracy" else {})

    def held_out_metrics(self, model: nn.Module, records: Shard) -> Mapping[str, float]:
        """Measure a client's model on all of its held-out records together, for example an AUC or a C-index.

        They are recorded beside the scores, as `each_auc`: the mean over clients, the smallest and the largest. A
        metric that the records do not define, because all are of one class, may be left out or NaN: such a client does
        not count. Default: none.

        Args:
            model: the client's, in the mode of evaluation, after the task's standardisation; no gradients are recorded.
            records: of one client, one or more, from `held_out`, without null rows.
        """
        return {}

    def partition(self, num_partitions: int) -> str:
        """Name the split that a simulation uses: runs on one ledger must agree on it, or losses could not be added.

        Default: a name that no other run has. Such a run needs a ledger of its own; to share one, return a name for the
        split of `shard`.
        """
        return f"{num_partitions} parts, which partition() does not name ({secrets.token_hex(4)})"


def relation_of(task: Task) -> NeighbouringRelation:
    """Return the relation of a task's guarantee: zero-out where shard sizes are public, else add-or-remove-one.

    A server plans with it and a client checks every grant against it: a client that discloses the number of its records
    cannot be promised that the presence of one record stays hidden.

    >>> from fedprivacy.tasks import Cancer
    >>> relation_of(Cancer())
    <NeighbouringRelation.ZERO_OUT: 'zero-out'>
    """
    return NeighbouringRelation.ZERO_OUT if task.shard_sizes_public else NeighbouringRelation.ADD_OR_REMOVE_ONE
