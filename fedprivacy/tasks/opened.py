"""A task as the program uses it: no member is optional, and what each method returns is checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from fedprivacy._support import sources
from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.sheet import Sheet, collecting_sheets, tell
from fedprivacy.tasks.task import NO_TABLE, Score, Shard, ShardSource, Task, check_null, relation_of
from fedprivacy.values.metrics import MOST_SCORES, RECORDS, bare_name
from fedprivacy.values.numbers import number_of
from fedprivacy.values.unit import RECORD, Unit, check_rows_in_a_step
from fedprivacy.values.wording import count_text


class TaskError(sources.SourceError):
    """A task that cannot be found or is not one, with the remedy."""


class OpenedTask(Task):
    """A user's task with all members of `Task`: the defaults where it has none, and checks around its methods.

    Two are equal if their original tasks are: what is cached for a task serves every `OpenedTask` of it.

    Attributes:
        original: the user's object. Clients make models of it, so that an error keeps its own kind and place: of
            others nothing may be shown on a data owner's host.
        word: a configuration's name for it: that by which it was loaded, or a name for an object.
    """

    def __init__(self, original: Task, word: str, named: str) -> None:
        """Open a task.

        Args:
            original: the user's object.
            word: a configuration's name for it.
            named: the beginning of an error that speaks of the task.

        Raises:
            TaskError: the object is no task, or has attributes that are out of range.
        """
        if isinstance(original, type):  # a class has every member of a task, but is none
            raise TaskError(
                f"the task is the class {original.__name__} and no object of it; write {original.__name__}()."
            )
        if missing := lacking(original):
            raise TaskError(f"{named}, which lacks {', '.join(missing)}; see fedprivacy.Task.")
        self.original, self.word = original, word
        for member in Task.__annotations__:
            setattr(self, member, getattr(original, member, getattr(Task, member)))
        self.unit = self.unit or RECORD
        try:
            check_rows_in_a_step(self.unit.rows, self.rows_per_step, self.person_gradient)
        except ValueError as error:
            raise TaskError(f"{named}, whose {error}") from error
        if not isinstance(self.metric, str):
            raise TaskError(f"{named}, whose metric is {self.metric!r}; give the name of one, for example 'accuracy'.")

    if not TYPE_CHECKING:  # a misspelt member would have any type

        def __getattr__(self, name: str) -> Any:
            """Delegate what only the user's class has."""
            if name.startswith("_"):  # for example while a copy is made, which has no task yet
                raise AttributeError(name)
            return getattr(self.original, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenedTask) and self.original == other.original

    def __hash__(self) -> int:
        return hash(self.original)

    @contextmanager
    def calling(self, call: str) -> Iterator[None]:
        """Turn any error of a task's method into a one-line `TaskError` with the line of the task's file.

        Args:
            call: description of the call, "shard() for client-0".
        """
        try:
            yield
        except Exception as error:
            try:
                file = inspect.getsourcefile(type(self.original))
            except (OSError, TypeError):  # a class of a notebook's cell, or of a shell
                file = None
            raise TaskError(f"task {self.name}: {call} fails: {sources.describe_error(error, file)}.") from error

    def model(self) -> nn.Module:
        """Make a new model of the task. Raises TaskError: `model` fails or returns something else."""
        with self.calling("model()"):
            model = self.original.model()
        if not isinstance(model, nn.Module):
            raise TaskError(f"task {self.name}: model() returns a {type(model).__name__}; return a torch.nn.Module.")
        return model

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure a model on the server's public records by the task's `evaluate`; empty if it measures nothing.

        Raises:
            TaskError: `evaluate` fails, or does not return numbers by name with the task's metric among them.
        """
        with self.calling("evaluate()"), torch.no_grad():
            found = self.original.evaluate(model.eval())
        metrics = self._numbers("evaluate()", found)
        if metrics and bare_name(self.metric) == self.metric not in metrics:
            raise TaskError(
                f"task {self.name}: evaluate() returns {', '.join(metrics)} and not its metric, {self.metric}; return "
                f"that too, or set the task's metric, for example metric = '{next(iter(metrics))}'."
            )
        return metrics

    def held_out_metrics(self, model: nn.Module, records: Shard) -> dict[str, float]:
        """Measure a client's model on all of its held-out records together; a metric that is not a number is left out.

        Raises:
            TaskError: `held_out_metrics` fails, does not return numbers by name, or names a metric as a score is named.
        """
        if not self.offers("held_out_metrics"):
            return {}
        with self.calling("held_out_metrics()"), torch.no_grad():
            found = self.original.held_out_metrics(model, records)
        metrics = self._numbers("held_out_metrics()", found)
        if twice := sorted(metrics.keys() & self.scores().keys()):
            raise TaskError(
                f"task {self.name}: held_out_metrics() returns '{twice[0]}', as a score of scores() is called; call "
                "one of them otherwise."
            )
        return {name: value for name, value in metrics.items() if not math.isnan(value)}

    def _numbers(self, call: str, found: object) -> dict[str, float]:
        """Check that a method returned numbers by name; a `TaskError` shows one that is right."""
        example = f"return numbers by name, for example {{'{bare_name(self.metric)}': 0.5}}"
        if not isinstance(found, Mapping):
            raise TaskError(f"task {self.name}: {call} returns a {type(found).__name__}; {example}.")
        metrics = {name: number_of(value) for name, value in found.items()}
        for name, number in metrics.items():
            if not isinstance(name, str) or number is None:
                kind = type(found[name]).__name__
                raise TaskError(f"task {self.name}: {call} returns a {kind} for {name!r}; {example}.")
        return {name: float(number) for name, number in metrics.items() if number is not None}

    def scores(self) -> dict[str, Score]:
        """Return the scores that local evaluation measures for each record, by name.

        Raises:
            TaskError: `scores` fails, or returns something else than scores by name.
        """
        with self.calling("scores()"):
            scores = dict(self.original.scores() if self.offers("scores") else super().scores())
        if not scores or not all(isinstance(n, str) and isinstance(s, Score) for n, s in scores.items()):
            raise TaskError(f"task {self.name}: scores() must return fedprivacy.Score objects by name, one at least.")
        if len(scores) > MOST_SCORES:
            raise TaskError(
                f"task {self.name}: scores() returns {len(scores)} scores; return {MOST_SCORES} at most, and better "
                "few: they share the sensitivity."
            )
        if RECORDS in scores:
            raise TaskError(f"task {self.name}: a score is called '{RECORDS}', as their number is; call it otherwise.")
        return scores

    def offers(self, method: str) -> bool:
        """Return whether the task has a method of its own: `held_out`, for example, and does not inherit `Task`'s."""
        usual = getattr(Task, method)
        own = getattr(self.original, method, usual)
        return getattr(own, "__func__", own) is not usual

    def shard(self, source: ShardSource) -> Shard:
        """Read a client's records and enforce the task's promise: the values of null rows are removed.

        Their owner is told how many cannot be read (`fedprivacy.tasks.sheet`), if no table's sheet says so.

        Raises:
            TypeError: `shard` returns something else.
            ValueError: null rows are not stated, and zero-out is promised: a row in the place of an unreadable record
                would be trained on. Or its records are not the task's unit of privacy.
            Exception: any error that `shard` raises.
        """
        try:
            with collecting_sheets() as sheets:
                shard = self.original.shard(source)
            if not isinstance(shard, Shard):
                raise TypeError(f"it returns a {type(shard).__name__}; return fedprivacy.Shard(inputs, targets)")
            if not sheets and shard.null is not None:
                sheets.append(Sheet.of_records(self.name, self.unit.name, len(shard), int((~shard.null).sum())))
        finally:  # a table's sheet may say why the task fails
            for sheet in sheets:
                tell(sheet, whole=source.folder is not None)
        if wrong := _not_of(self.unit, shard.rows, shard.by_person):
            raise ValueError(f"its {wrong}")
        check_null(shard, relation_of(self))
        return shard.present()

    def held_out(self, source: ShardSource) -> Shard:
        """Read a simulated client's held-out records. Raises TaskError: `held_out` fails, or returns something else."""
        with self.calling(f"held_out() for part {source.partition_id}"):
            records = self.original.held_out(source)
        if not isinstance(records, Shard):
            raise TaskError(
                f"task {self.name}: held_out() returns a {type(records).__name__}; return a fedprivacy.Shard."
            )
        return records.present().by_row()

    def needed_augmentation(self) -> Augmentation:
        """Return the task's augmentation. Raises TaskError: the task has none, or one of another type."""
        if not isinstance(self.augmentation, Augmentation):
            raise TaskError(
                f"task {self.name} has no augmentation, of which augmentation-multiplicity takes views; leave it open, "
                "or give the task one: augmentation = fedprivacy.tasks.shifted(pixels=1)."
            )
        return self.augmentation

    def table(self, source: ShardSource) -> Table:
        """Read a client's records by column, of which questions are asked.

        Raises:
            TaskError: the task offers no table, `table` fails, it returns something else, or a table whose records are
                not the task's unit of privacy.
        """
        if not self.offers("table"):
            raise TaskError(NO_TABLE.format(name=self.name))
        with self.calling("table()"):
            table = self.original.table(source)
        if not isinstance(table, Table):
            raise TaskError(f"task {self.name}: table() returns a {type(table).__name__}; return a fedprivacy.Table.")
        if wrong := _not_of(self.unit, table.most_rows or 1, table.persons is not None):
            raise TaskError(f"task {self.name}: the table's {wrong}.")
        return table

    def check_scores(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Score some records by the task's scores, given their outputs and targets, each [batch, ...].

        Raises:
            TaskError: a score fails, is not one number for each record, or depends on more than the record.
        """
        for name, score in self.scores().items():
            with self.calling(f"score '{name}'"):
                found = score.measure(outputs.clone(), targets.clone())
            if not isinstance(found, torch.Tensor) or found.shape != targets.shape[:1]:
                shape = list(found.shape) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
                records = count_text(len(targets), "record")
                raise TaskError(
                    f"task {self.name}: score '{name}' returns {shape} for {records}; return one number for each, "
                    "shape [batch]."
                )
            pairs = zip(outputs.split(1), targets.split(1), strict=True)
            with self.calling(f"score '{name}' of one record"):
                alone = torch.cat([score.measure(output.clone(), target.clone()) for output, target in pairs])
            rounding = 1e-4 * (score.most - score.least)
            if not torch.allclose(found.double(), alone.double(), rtol=1e-4, atol=rounding, equal_nan=True):
                raise TaskError(
                    f"task {self.name}: score '{name}' of a record is another one when it is taken again, without the "
                    "others; compute it from the record's output and target alone, and draw no random numbers."
                )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the task's loss of each record, shape [batch]."""
        return self.original.loss(outputs, targets)

    def partition(self, num_partitions: int) -> str:
        """Name the split that a simulation uses."""
        return self.original.partition(num_partitions)


def _not_of(unit: Unit, rows: int, by_person: bool) -> str:
    """Say why records of up to `rows` rows are not the task's unit of privacy; "": they are."""
    if by_person and unit == RECORD:  # without a row, a person's next one would count
        return f"records are persons, and the task's unit is a row; name it: unit = fp.Unit('patient', {rows})"
    if rows == unit.rows:
        return ""
    return (
        f"records have up to {count_text(rows, 'row')}, and the task's unit is {unit}; give persons= and "
        f"most_rows={unit.rows}, or the task another unit"
    )


_OPTIONAL = {
    *("allow_null", "augmentation", "held_out", "held_out_metrics", "person_gradient", "rows_per_step"),
    *("scores", "standardise", "table", "unit"),
}
"""Optional members: a class that is not derived from `Task` gets `Task`'s instead."""


def is_task(value: object) -> TypeGuard[Task]:
    """Return whether an object is a task, of whatever class."""
    return not isinstance(value, type) and not lacking(value)


def lacking(task: object) -> list[str]:
    """List the members that an object lacks to be a task."""
    members = {*Task.__annotations__, *(member for member in vars(Task) if not member.startswith("_"))} - _OPTIONAL
    missing = sorted(member for member in members if not hasattr(task, member))
    return missing if isinstance(task, Hashable) else [*missing, "__hash__"]
