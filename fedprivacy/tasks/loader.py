"""Loader of tasks by name: a built-in task's or `path/to/file.py:name`; names of tasks, and lists of allowed ones."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import TypeGuard, cast

import torch
from torch import nn

from fedprivacy._support import sources
from fedprivacy.tasks.augmentation import Augmentation
from fedprivacy.tasks.built_in import BUILT_IN, DEFAULT_TASK
from fedprivacy.tasks.columns import Table
from fedprivacy.tasks.sheet import Sheet, collected, tell
from fedprivacy.tasks.task import NO_TABLE, Score, Shard, ShardSource, Task, check_null, relation_of
from fedprivacy.values.metrics import MOST_SCORES, RECORDS, bare_name
from fedprivacy.values.numbers import number_of
from fedprivacy.values.unit import RECORD, Unit, check_rows_in_a_step, unit_of
from fedprivacy.values.wording import count_text

OBJECT = "object:"
"""Prefix of the name of a task that was given as an object; the name of its class follows."""

_LOADED: list[tuple[Task, str]] = []
"""Every task that was loaded, with its name. They are kept, since Python gives a dead object's `id` to another one."""


class TaskError(sources.SourceError):
    """A task that cannot be found or is not one, with the remedy."""


@cache
def load_task(name: str, sha256: str | None = None) -> Task:
    """Load a built-in task by name, or one from `path/to/file.py:name` or `package.module:name`; once in a process.

    `name` after the colon is a task or a callable without arguments that returns one, for example a class. The name
    decides which code is imported and called: a client takes it from its own configuration alone, and only compares a
    server's word with it (`allowed_tasks`).

    >>> load_task("cancer").recipe.epsilon
    2.0

    Args:
        name: name of the task.
        sha256: digest of the file that it names, in hexadecimal; None: any file will do.

    Raises:
        TaskError: the task is not found; the error says what to write instead.
    """
    if name.startswith(OBJECT):
        made = name.removeprefix(OBJECT)
        raise TaskError(f"task is '{name}', which only the program that made it has; give the object again, {made}().")
    if name not in BUILT_IN and not sources.is_source(name):
        raise TaskError(f"task is '{name}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
    try:
        found = sources.load("task", BUILT_IN.get(name, name), sha256)
    except sources.SourceError as error:
        raise TaskError(str(error)) from error
    task = _made(found, name) if callable(found) else found
    _check_complete(task, f"task is '{name}'")
    _LOADED.append((task, name))
    return task


def agreed(word: str | None, task: Task | None) -> Task:
    """Return the one task that a configuration names and a program brings.

    Args:
        word: name in the configuration; None: it names none.
        task: task object of the program; None: the named task is loaded.

    Raises:
        TaskError: there is no such task, the object is not a task, or the two differ.
    """
    if task is None:
        return load_task(word or DEFAULT_TASK)
    _check_complete(task, f"the task is an object of class {type(task).__name__}")
    if word is not None and word not in _words(task):
        raise TaskError(
            f"task is '{word}' in the configuration, and {_words(task)[0]} was given beside it; leave out one of them."
        )
    return task


def word_of(task: Task) -> str:
    """Return a configuration's name for a task: that by which it was loaded, or a name for a task object."""
    return _words(task)[0]


@contextmanager
def method_of(task: Task, call: str) -> Iterator[None]:
    """Turn any error of a task's method into a one-line `TaskError` with the line of the task's file.

    Args:
        task: the task.
        call: description of the call, "shard() for client-0".
    """
    try:
        yield
    except Exception as error:
        try:
            file = inspect.getsourcefile(type(task))
        except (OSError, TypeError):  # a class of a notebook's cell, or of a shell
            file = None
        raise TaskError(f"task {task.name}: {call} fails: {sources.told(error, file)}.") from error


def model_of(task: Task) -> nn.Module:
    """Make a new model of the task.

    Raises:
        TaskError: `model` fails or returns something else.
    """
    with method_of(task, "model()"):
        model = task.model()
    if not isinstance(model, nn.Module):
        raise TaskError(f"task {task.name}: model() returns a {type(model).__name__}; return a torch.nn.Module.")
    return model


def metrics_of(task: Task, model: nn.Module) -> dict[str, float]:
    """Measure a model on the server's public records by the task's `evaluate`; empty if it measures nothing.

    Raises:
        TaskError: `evaluate` fails, or does not return numbers by name with the task's metric among them.
    """
    with method_of(task, "evaluate()"), torch.no_grad():
        found = task.evaluate(model.eval())
    metrics = _numbers(task, "evaluate()", found)
    if metrics and bare_name(task.metric) == task.metric not in metrics:
        raise TaskError(
            f"task {task.name}: evaluate() returns {', '.join(metrics)} and not its metric, {task.metric}; return that "
            f"too, or set the task's metric, for example metric = '{next(iter(metrics))}'."
        )
    return metrics


def held_out_metrics_of(task: Task, model: nn.Module, records: Shard) -> dict[str, float]:
    """Measure a client's model on all of its held-out records together; a metric that is not a number is left out.

    Raises:
        TaskError: `held_out_metrics` fails, does not return numbers by name, or names a metric as a score is named.
    """
    if not hasattr(task, "held_out_metrics"):
        return {}
    with method_of(task, "held_out_metrics()"), torch.no_grad():
        found = task.held_out_metrics(model, records)
    metrics = _numbers(task, "held_out_metrics()", found)
    if twice := sorted(metrics.keys() & scores_of(task).keys()):
        raise TaskError(
            f"task {task.name}: held_out_metrics() returns '{twice[0]}', as a score of scores() is called; call one "
            "of them otherwise."
        )
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def _numbers(task: Task, call: str, found: object) -> dict[str, float]:
    """Check that a method returned numbers by name; a `TaskError` shows one that is right."""
    example = f"return numbers by name, for example {{'{bare_name(task.metric)}': 0.5}}"
    if not isinstance(found, Mapping):
        raise TaskError(f"task {task.name}: {call} returns a {type(found).__name__}; {example}.")
    metrics = {name: number_of(value) for name, value in found.items()}
    for name, number in metrics.items():
        if not isinstance(name, str) or number is None:
            kind = type(found[name]).__name__
            raise TaskError(f"task {task.name}: {call} returns a {kind} for {name!r}; {example}.")
    return {name: float(number) for name, number in metrics.items() if number is not None}


def scores_of(task: Task) -> dict[str, Score]:
    """Return the scores that local evaluation measures for each record, by name.

    Raises:
        TaskError: `scores` fails, or returns something else than scores by name.
    """
    with method_of(task, "scores()"):
        scores = dict(task.scores() if hasattr(task, "scores") else Task.scores(task))
    if not scores or not all(isinstance(n, str) and isinstance(s, Score) for n, s in scores.items()):
        raise TaskError(f"task {task.name}: scores() must return fedprivacy.Score objects by name, one at least.")
    if len(scores) > MOST_SCORES:
        raise TaskError(
            f"task {task.name}: scores() returns {len(scores)} scores; return {MOST_SCORES} at most, and better few: "
            "they share the sensitivity."
        )
    if RECORDS in scores:
        raise TaskError(f"task {task.name}: a score is called '{RECORDS}', as their number is; call it otherwise.")
    return scores


def offers(task: Task, method: str) -> bool:
    """Return whether a task has a method of its own: `held_out`, for example, and does not inherit `Task`'s."""
    usual = getattr(Task, method)
    own = getattr(task, method, usual)
    return getattr(own, "__func__", own) is not usual


def shard_of(task: Task, source: ShardSource) -> Shard:
    """Read a client's records and enforce the task's promise: the values of null rows are removed.

    Their owner is told how many cannot be read (`fedprivacy.tasks.sheet`), if no table's sheet says so.

    Raises:
        TypeError: `shard` returns something else.
        ValueError: null rows are not stated, and zero-out is promised: a row in the place of an unreadable record would
            be trained on. Or its records are not the task's unit of privacy.
        Exception: any error that `shard` raises.
    """
    try:
        with collected() as sheets:
            shard = task.shard(source)
        if not isinstance(shard, Shard):
            raise TypeError(f"it returns a {type(shard).__name__}; return fedprivacy.Shard(inputs, targets)")
        if not sheets and shard.null is not None:
            sheets.append(Sheet.of_records(task.name, unit_of(task).name, len(shard), int((~shard.null).sum())))
    finally:  # a table's sheet may say why the task fails
        for sheet in sheets:
            tell(sheet, whole=source.folder is not None)
    if wrong := _not_of(unit_of(task), shard.rows, shard.by_person):
        raise ValueError(f"its {wrong}")
    check_null(shard, relation_of(task))
    return shard.present()


def held_out_of(task: Task, source: ShardSource) -> Shard:
    """Read a simulated client's held-out records.

    Raises:
        TaskError: `held_out` fails, or returns something else.
    """
    with method_of(task, f"held_out() for part {source.partition_id}"):
        records = task.held_out(source)
    if not isinstance(records, Shard):
        raise TaskError(f"task {task.name}: held_out() returns a {type(records).__name__}; return a fedprivacy.Shard.")
    return records.present().by_row()


def augmentation_of(task: Task) -> Augmentation:
    """Return the task's augmentation.

    Raises:
        TaskError: the task has none, or one of another type.
    """
    augmentation = getattr(task, "augmentation", None)
    if not isinstance(augmentation, Augmentation):
        raise TaskError(
            f"task {task.name} has no augmentation, of which augmentation-multiplicity takes views; leave it open, or "
            "give the task one: augmentation = fedprivacy.tasks.shifted(pixels=1)."
        )
    return augmentation


def offers_table(task: Task) -> bool:
    """Return whether questions can be asked of the task's records: it has a `table` of its own."""
    method = getattr(task, "table", Task.table)
    return getattr(method, "__func__", method) is not Task.table


def table_of(task: Task, source: ShardSource) -> Table:
    """Read a client's records by column, of which questions are asked.

    Raises:
        TaskError: the task offers no table, `table` fails, it returns something else, or a table whose records are not
            the task's unit of privacy.
    """
    if not offers_table(task):
        raise TaskError(NO_TABLE.format(name=task.name))
    with method_of(task, "table()"):
        table = task.table(source)
    if not isinstance(table, Table):
        raise TaskError(f"task {task.name}: table() returns a {type(table).__name__}; return a fedprivacy.Table.")
    if wrong := _not_of(unit_of(task), table.most_rows or 1, table.persons is not None):
        raise TaskError(f"task {task.name}: the table's {wrong}.")
    return table


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


def check_scores(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Score some records by the task's scores, given their outputs and targets, each [batch, ...].

    Raises:
        TaskError: a score fails, is not one number for each record, or depends on more than the record.
    """
    for name, score in scores_of(task).items():
        with method_of(task, f"score '{name}'"):
            found = score.measure(outputs.clone(), targets.clone())
        if not isinstance(found, torch.Tensor) or found.shape != targets.shape[:1]:
            shape = list(found.shape) if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
            records = count_text(len(targets), "record")
            raise TaskError(
                f"task {task.name}: score '{name}' returns {shape} for {records}; return one number for each, shape "
                "[batch]."
            )
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        with method_of(task, f"score '{name}' of one record"):
            alone = torch.cat([score.measure(output.clone(), target.clone()) for output, target in pairs])
        rounding = 1e-4 * (score.most - score.least)
        if not torch.allclose(found.double(), alone.double(), rtol=1e-4, atol=rounding, equal_nan=True):
            raise TaskError(
                f"task {task.name}: score '{name}' of a record is another one when it is taken again, without the "
                "others; compute it from the record's output and target alone, and draw no random numbers."
            )


def _made(maker: Callable[[], Task], name: str) -> Task:
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise TaskError(
            f"task is '{name}', which cannot be made without arguments ({error}); give each a default."
        ) from error
    except ValueError:  # a built-in function without a signature
        pass
    try:
        return maker()
    except Exception as error:
        raise TaskError(f"task is '{name}', which cannot be made: {sources.told(error)}.") from error


def _words(task: Task) -> list[str]:
    return sorted(name for loaded, name in _LOADED if loaded is task) or [f"{OBJECT}{type(task).__name__}"]


def _check_complete(task: object, named: str) -> None:
    if isinstance(task, type):  # a class has every member of a task, but is none
        raise TaskError(f"the task is the class {task.__name__} and no object of it; write {task.__name__}().")
    if missing := lacking(task):
        raise TaskError(f"{named}, which lacks {', '.join(missing)}; see fedprivacy.Task.")
    used = (getattr(task, name, getattr(Task, name)) for name in ("rows_per_step", "person_gradient"))
    try:
        check_rows_in_a_step(unit_of(task).rows, *used)
    except ValueError as error:
        raise TaskError(f"{named}, whose {error}") from error
    metric = cast(Task, task).metric
    if not isinstance(metric, str):
        raise TaskError(f"{named}, whose metric is {metric!r}; give the name of one, for example 'accuracy'.")


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


@dataclass(frozen=True, slots=True)
class AllowedTask:
    """One task that a client may work on: the server's name for it, and the source and SHA-256 of the code to load."""

    name: str
    source: str
    sha256: str | None

    @classmethod
    def of(cls, entry: str) -> AllowedTask:
        """Parse an entry of the configuration: a source, for a file optionally with `@sha256:HEX`.

        Raises:
            TaskError: the entry names no task.
        """
        source, at, sha256 = entry.partition("@")
        if at and not (sources.names_file(source) and re.fullmatch("sha256:[0-9a-fA-F]{64}", sha256)):
            raise TaskError(
                f"task is '{entry}'; after a file, and only there, write @sha256: and 64 hexadecimal digits."
            )
        if source not in BUILT_IN and not sources.is_source(source):
            raise TaskError(f"task is '{entry}'; choose one of {', '.join(BUILT_IN)}, or write path/to/file.py:name.")
        return cls(public_name(source), source, sha256.removeprefix("sha256:").lower() if at else None)

    def load(self) -> Task:
        """Load the task. Raises the errors of `load_task`, for example because the file has changed."""
        return load_task(self.source, self.sha256)


def allowed_tasks(entries: Iterable[str]) -> dict[str, AllowedTask]:
    """Parse entries of the configuration into tasks, by the names that a server must use.

    Raises:
        TaskError: an entry names no task, or two entries have one name.
    """
    allowed: dict[str, AllowedTask] = {}
    for task in map(AllowedTask.of, entries):
        if task.name in allowed:
            raise TaskError(f"two tasks go by the name '{task.name}'; give one of the files another name.")
        allowed[task.name] = task
    return allowed


def public_name(source: str) -> str:
    """Return a task's name between hosts: a file's own name, without its folders; any other name as it is."""
    file, colon, attribute = source.rpartition(":")
    return f"{PurePath(file).name}{colon}{attribute}" if sources.names_file(source) else source
